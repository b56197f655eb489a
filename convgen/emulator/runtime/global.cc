// Global memory: the compiler reports every load and store of the generated code (kernel address sanitizer,
// outlined), and undefined arithmetic (undefined behavior sanitizer); what they mean is decided here.

#include <dlfcn.h>
#include <signal.h>
#include <time.h>
#ifdef __linux__
#include <ucontext.h>
#endif

#include <initializer_list>

#include "state.h"

namespace convgen_emulator {

static const void* image_base(const void* address) {
  Dl_info info;
  return dladdr(address, &info) ? info.dli_fbase : nullptr;
}

static u64 image_offset(const void* return_address) {
  return u64(return_address) - 1 - u64(image_base(return_address));
}

static std::string describe_global(u64 address) {
  if (address - u64(shared_memory) < most_shared) {
    return format("shared_memory[%llu], which the emulator knows by its shared address alone (ld_shared, st_shared)",
                  address - u64(shared_memory));
  }
  const Region* nearest = nullptr;
  u64 distance = ~0ull;
  for (u32 i = 0; i < machine->request->region_count; ++i) {
    const Region& r = machine->request->regions[i];
    const u64 away = address < r.base              ? r.base - address
                     : address >= r.base + r.bytes ? address - (r.base + r.bytes)
                                                   : 0;
    if (away < distance) {
      distance = away;
      nearest = &r;
    }
  }
  if (!nearest || distance > 1ull << 36) return format("address 0x%llx, far from every buffer", address);
  const long long offset = (long long)(address - nearest->base);
  const u64 size = nearest->element_bytes ? nearest->element_bytes : 1;
  return format("%s[%lld] (byte %lld of %llu)", nearest->name,
                (offset - (offset < 0 ? (long long)size - 1 : 0)) / (long long)size, offset, nearest->bytes);
}

// Whether the launch before, which may still write what this one reads and read what it writes, is over.
static bool launch_before_is_over(Thread* t) {
  return t->may_touch_global = t->may_touch_global || t->clock.seen.covers({t->block->cluster->launch_before, 1});
}

static void check_launch_before(const char* what, int line, const void* return_address) {
  if (launch_before_is_over(current)) return;
  add_finding("launch before", line,
              format("%s global memory before griddepcontrol_wait: the launch before may still use it", what), current,
              return_address ? image_offset(return_address) : 0);
  if (machine->stop) abandon();
  current->may_touch_global = true;  // told once
}

static void check_launch_before(const char* what, int line) { check_launch_before(what, line, nullptr); }

static u32 own_cluster() { return current->block->flat / machine->request->cluster; }

// Whether the thread comes behind what has written a word.  Of other clusters' reductions it is not known which they are.
static bool comes_behind(const Writer& last) {
  const Counts& seen = current->clock.seen;
  const Cluster* cluster = current->block->cluster;
  const bool reduced = Reductions::are(last.epoch), by_several = last.epoch.agent == Reductions::of_clusters;
  if (last.cluster == own_cluster() && !by_several) {
    if (reduced) return cluster->reductions.covered(last.epoch, seen);
    return seen.covers(last.epoch) && !unpublished(current->block, last.epoch, OneThread{current});
  }
  for (const Acquired& known : cluster->acquired) {
    if (!seen.covers(known.epoch) || (!by_several && known.cluster != last.cluster)) continue;
    if (reduced || known.seen.covers(last.epoch)) return true;
  }
  return false;
}

// The thread learns what others have released at an address, and releases what it may.
static void synchronize(u64 address, bool releases) {
  Thread* t = current;
  Cluster* cluster = t->block->cluster;
  const Release everything{own_cluster(), everybody, releases ? t->clock.published : Counts()};
  const Release of_block{own_cluster(), t->block->flat, releases ? t->before_fence : Counts()};
  tick(t);
  machine->written->releases.meet(address, {everything, of_block}, [&](const Release& other) {
    if (other.block != everybody && other.block != t->block->flat) return;
    if (other.cluster == own_cluster()) return t->clock.seen.join(other.seen);
    cluster->acquired.push_back({now(t), other.cluster, other.seen});
  });
}

// The epoch of a reduction by the thread to a word.
static Epoch reduction(const Writer* last, u32 cluster) {
  if (last && (last->cluster != cluster || last->epoch.agent == Reductions::of_clusters)) {
    return {Reductions::of_clusters, 0};
  }
  return current->block->cluster->reductions.joined(last ? &last->epoch : nullptr, now(current), current->clock.seen);
}

// Whether the thread comes behind what has read a word, which publishes nothing.
static bool comes_behind_readers(const Writer& last) {
  if (last.cluster == own_cluster() && !Reductions::are(last.epoch)) return current->clock.seen.covers(last.epoch);
  return comes_behind(last);
}

// Whoever has read a word, and the thread, whose read is over at `mine.epoch`.  Of several that have read different
// bytes the last one is kept, and of a thread's reads the last.
static Writer with_reader(const Writer& last, Writer mine) {
  Reductions& sets = current->block->cluster->reductions;
  const bool set = Reductions::are(last.epoch), other = last.cluster != mine.cluster;
  if (last.bytes != mine.bytes || (!other && !set && last.epoch.agent == mine.epoch.agent)) return mine;
  if (other || last.epoch.agent == Reductions::of_clusters) return {mine.cluster, {Reductions::of_clusters, 0}, mine.bytes};
  const Counts& seen = current->clock.seen;
  if (set ? sets.covered(last.epoch, seen) : seen.covers(last.epoch)) return mine;
  const Epoch before = set ? last.epoch : sets.joined(nullptr, last.epoch, seen);
  if (sets.full(before)) return last;
  mine.epoch = sets.joined(&before, mine.epoch, seen);
  return mine;
}

static void keep_reader(u32 region, u64 word, const Writer& mine) {
  Written& written = *machine->written;
  const u64 before = written.readers(region, word);
  const u64 after = before ? with_reader(Writer::of(before), mine).packed() : mine.packed();
  if (after != before) written.put_readers(region, word, after);
}

// `did`: how another thread came to the address before.
static void add_race(u64 address, bool write, const char* did, bool same_cluster, int line, const void* return_address) {
  add_finding("race", line,
              format("%s %s, which %s has %s in this launch, with no synchronization between",
                     write ? "writes" : "reads", describe_global(address).c_str(),
                     same_cluster ? "another thread" : "another block", did),
              current, return_address ? image_offset(return_address) : 0);
  if (machine->stop) abandon();
}

// Two accesses to the same bytes, one of them a write, are ordered by synchronization, or wrong.  Blocks of other
// clusters have none but atomic operations.  `epoch` is when the access is over; without one, a read is not kept.
static void check_order(u32 region, u64 offset, u64 bytes, bool write, const Epoch* over, int line,
                        const void* return_address) {
  const Epoch epoch = over ? *over : now(current);
  Written& written = *machine->written;
  if (!written.known(region)) return;
  constexpr u64 word_bytes = Written::word_bytes;
  const bool any = written.any(region), any_readers = written.any_readers(region);
  const u32 cluster = own_cluster();
  for (u64 word = offset / word_bytes; word * word_bytes < offset + bytes; ++word) {
    const u64 begin = word * word_bytes, end = begin + word_bytes;
    Writer mine{cluster, epoch, 15};
    if (begin < offset) mine.bytes &= 15u << (offset - begin);
    if (offset + bytes < end) mine.bytes &= 15u >> (end - offset - bytes);
    const u64 packed = any ? written.at(region, word) : 0;
    const Writer last = Writer::of(packed);
    const u64 address = machine->request->regions[region].base + begin;
    if (packed && last.epoch.agent == flag.agent) {
      if (!write) synchronize(address, false);
      continue;
    }
    const bool together = packed && epoch.agent >= flag.agent && Reductions::are(last.epoch);
    if (last.bytes & mine.bytes && packed && !together && !comes_behind(last)) {
      return add_race(address, write, "written", last.cluster == cluster, line, return_address);  // told once
    }
    if (!write) {
      if (over) keep_reader(region, word, mine);
      continue;
    }
    if (const u64 read = any_readers ? written.readers(region, word) : 0) {
      const Writer reader = Writer::of(read);
      if (reader.bytes & mine.bytes && epoch.agent != flag.agent && !comes_behind_readers(reader)) {
        return add_race(address, true, "read", reader.cluster == cluster, line, return_address);
      }
      if ((reader.bytes & ~mine.bytes) == 0) written.put_readers(region, word, 0);
    }
    const bool same = packed && last.cluster == cluster && last.epoch.agent == epoch.agent;
    if (same || together) mine.bytes |= last.bytes;
    if (Reductions::are(epoch)) mine.epoch = reduction(together ? &last : nullptr, cluster);
    if (!packed && mine.packed()) has_progressed();
    written.put(region, word, mine);
  }
}

// Calls visit(writer, address) for the words of [address, address + bytes) that this launch has written, until it is true.
template <class Visit>
static void each_written(u64 address, u64 bytes, Visit visit) {
  constexpr u64 word_bytes = Written::word_bytes;
  const Written& written = *machine->written;
  for (u32 i = 0; i < machine->request->region_count; ++i) {
    const Region& r = machine->request->regions[i];
    if (address - r.base >= r.bytes || !written.known(i) || !written.any(i)) continue;
    for (u64 word = (address - r.base) / word_bytes; word * word_bytes < address - r.base + bytes; ++word) {
      const u64 packed = written.at(i, word);
      if (packed && visit(Writer::of(packed), r.base + word * word_bytes)) return;
    }
  }
}

// TMA, whose proxy is the asynchronous one, comes to what a thread has stored in this launch: no fence of the catalog is
// for global memory (PTX ISA, "Async proxy").
static void check_global_proxy(u64 address, u64 bytes, const char* what, int line) {
  const u32 threads = machine->request->cluster * machine->request->block;  // the first agents
  each_written(address, bytes, [&](const Writer& writer, u64 at) {
    if (writer.epoch.agent >= threads && writer.epoch.agent < flag.agent) return false;
    finding("proxy fence", line,
            format("%s %s, which a thread has stored in this launch: TMA need not see it, or keep to the order", what,
                   describe_global(at).c_str()));
    return true;
  });
}

static bool written_in_launch(u64 address) {
  const Request& request = *machine->request;
  for (u32 i = 0; i < request.region_count; ++i) {
    if (address - request.regions[i].base < request.regions[i].bytes) return machine->written->any(i);
  }
  return false;
}

// Whether the kernel may touch it; the common answers first.  `epoch` is that of the access.
static bool allowed(u64 address, u64 bytes, bool write, const Epoch* epoch, int line, const void* return_address) {
  const u64 stack = u64(current->stack);
  if (address - stack < Stack::bytes || address - u64(current) < sizeof(Place) || address == u64(&place)) return true;
  const Request& request = *machine->request;
  for (u32 i = 0; i < request.region_count; ++i) {
    const Region& r = request.regions[i];
    if (address < r.base || address - r.base + bytes > r.bytes) continue;
    if (r.pitch && (address - r.base) % r.pitch + bytes > r.row) return false;
    if (r.shared && !current->may_touch_global) check_launch_before(write ? "writes" : "reads", line, return_address);
    if (r.writable) check_order(i, address - r.base, bytes, write, epoch, line, return_address);
    return r.writable || !write;
  }
  // constants and the like of the kernel's own image, whose pages are its alone
  const u64 page = address / 4096;
  if (page == machine->own_page) return true;
  const void* own = image_base(reinterpret_cast<const void*>(request.entry));
  if (image_base(reinterpret_cast<const void*>(address)) != own) return false;
  machine->own_page = page;
  return true;
}

constexpr Epoch a_reduction{Reductions::agent, 0};

static void check_global_aligned(u64 address, u64 bytes, int line) {
  if (address % bytes) fatal("misaligned", line, format("%llu bytes at %s", bytes, describe_global(address).c_str()));
}

[[noreturn]] static void refuse(u64 address, u64 bytes, bool write, int line, u64 at = 0) {
  bool inside = false;
  for (u32 i = 0; i < machine->request->region_count; ++i) {
    const Region& r = machine->request->regions[i];
    inside |= address >= r.base && address - r.base + bytes <= r.bytes && !r.pitch;
  }
  fatal("out of bounds", line,
        format("%s %llu bytes at %s%s", write ? "writes" : "reads", bytes, describe_global(address).c_str(),
               inside ? ", which kernels only read" : ""),
        at);
}

static void check_global(const void* address, u64 bytes, bool write, const Epoch* epoch, int line) {
  if (write) has_effect(words(bytes), line);
  if (!allowed(u64(address), bytes, write, epoch, line, nullptr)) refuse(u64(address), bytes, write, line);
}

constexpr u32 often = 1 << 20;

// After so many accesses: it may be a loop that waits for another thread.
[[gnu::noinline, gnu::cold]] static void pause(const void* return_address) {
  if (idles(often)) does_not_end(0, image_offset(return_address));
  set_aside();
}

[[gnu::noinline]] static void global_access(u64 address, u64 bytes, u64 alignment, bool write,
                                            const void* return_address) {
  if (++machine->accesses % often == 0) pause(return_address);
  if (write) {
    has_effect();
    if (repeats(words(bytes))) does_not_end(0, image_offset(return_address));
  }
  const Epoch epoch = now(current);
  if (allowed(address, bytes, write, &epoch, 0, return_address)) {
    if (address % alignment == 0) return;
    fatal("misaligned", 0, format("%llu bytes at %s", bytes, describe_global(address).c_str()),
          image_offset(return_address));
  }
  refuse(address, bytes, write, 0, image_offset(return_address));
}

// Most accesses are to the thread's own stack: in a caller, `alignment` is a number, and nothing is divided.
[[gnu::always_inline]] static inline void instrumented(u64 address, u64 bytes, u64 alignment, bool write,
                                                       const void* return_address) {
  const Thread* t = current;
  if (!t || (address - u64(t->stack) < Stack::bytes && address % alignment == 0)) return;
  global_access(address, bytes, alignment, write, return_address);
}

// ---- undefined arithmetic (layouts: clang, "UndefinedBehaviorSanitizer" runtime interface) --------------------

struct SourceLocation {
  const char* file;
  u32 line, column;
};

[[noreturn]] static void undefined(const SourceLocation& where, const char* kind, std::string what) {
  fatal(kind, int(where.line), std::move(what));
}

// ---- faults ----------------------------------------------------------------------------------------------

constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
constexpr int fault_signal_count = sizeof fault_signals / sizeof *fault_signals;
static struct sigaction previous[fault_signal_count], previous_tick;

static void on_fault(int signal, siginfo_t* info, void*) {
  if (!current) {  // not the kernel's: as it would have been
    for (int i = 0; i < fault_signal_count; ++i) {
      if (fault_signals[i] == signal) sigaction(signal, &previous[i], nullptr);
    }
    return;
  }
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  const u64 address = u64(info->si_addr);
  if (signal == SIGILL || signal == SIGTRAP) {  // how processors trap
    machine->report->trapped = true;
    fatal("trap", 0, "executes an instruction that ends the program", address - u64(image_base(info->si_addr)));
  }
  if (signal == SIGFPE) fatal("arithmetic", current->wait.line, "divides by zero");
  if (address >= u64(current->stack) - 65536 && address < u64(current->stack))
    fatal("stack", 0, "the thread's local variables do not fit its stack");
  fatal("out of bounds", 0, format("touches %s", describe_global(address).c_str()));
}

// ---- loops that call nothing ---------------------------------------------------------------------------------

constexpr int tick_signal = SIGURG;  // ignored where nobody handles it

static u64 program_counter(const void* context) {
#if defined(__linux__) && defined(__x86_64__)
  return u64(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__linux__) && defined(__aarch64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.pc;
#else
  return 0;
#endif
}

// Sees whether a thread has done anything since the first tick that found it where it is.  It is in the kernel's own code
// then: all else counts what it does.
static void on_tick(int, siginfo_t*, void* context) {
  Machine* m = machine;
  if (!m || !current) return;
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  if (m->idle != m->tick.idle || m->effects != m->tick.effects) m->tick = {m->idle, m->effects, used.tv_sec};
  constexpr long most = 10;  // seconds
  if (used.tv_sec - m->tick.second < most) return;
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, tick_signal);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  const u64 at = program_counter(context);
  does_not_end(0, at ? at - u64(image_base(reinterpret_cast<const void*>(at))) : 0);
}

// Ticks for the thread of the host that makes it, every second.
class Clockwork {
 public:
  Clockwork() {
    sigset_t all, before;  // signals of the process are for others
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    running_ = pthread_create(&ticking_, nullptr, run, this) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Clockwork() {
    if (!running_) return;
    pthread_mutex_lock(&mutex_);
    over_ = true;
    pthread_cond_signal(&changed_);
    pthread_mutex_unlock(&mutex_);
    pthread_join(ticking_, nullptr);
  }

 private:
  static void* run(void* self) {
    static_cast<Clockwork*>(self)->tick();
    return nullptr;
  }
  void tick() {
    pthread_mutex_lock(&mutex_);
    while (!over_) {
      timespec next;
      clock_gettime(CLOCK_REALTIME, &next);
      ++next.tv_sec;
      pthread_cond_timedwait(&changed_, &mutex_, &next);
      if (!over_) pthread_kill(watched_, tick_signal);
    }
    pthread_mutex_unlock(&mutex_);
  }
  pthread_t watched_ = pthread_self(), ticking_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed_ = PTHREAD_COND_INITIALIZER;
  bool over_ = false, running_;
};

// Installed while kernels run, in whichever thread.
struct FaultHandlers {
  FaultHandlers() {
    pthread_mutex_lock(&mutex);
    if (users++ == 0) {
      struct sigaction action = {};
      action.sa_sigaction = on_fault;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      sigemptyset(&action.sa_mask);
      for (int i = 0; i < fault_signal_count; ++i) sigaction(fault_signals[i], &action, &previous[i]);
      action.sa_sigaction = on_tick;
      action.sa_flags |= SA_RESTART;
      sigaction(tick_signal, &action, &previous_tick);
    }
    pthread_mutex_unlock(&mutex);
  }
  ~FaultHandlers() {
    pthread_mutex_lock(&mutex);
    if (--users == 0) {
      for (int i = 0; i < fault_signal_count; ++i) sigaction(fault_signals[i], &previous[i], nullptr);
      sigaction(tick_signal, &previous_tick, nullptr);
    }
    pthread_mutex_unlock(&mutex);
  }
  static int users;
  static pthread_mutex_t mutex;
};
int FaultHandlers::users = 0;
pthread_mutex_t FaultHandlers::mutex = PTHREAD_MUTEX_INITIALIZER;

// A stack for the handler, since a fiber's may be what has run out.
struct SignalStack {
  std::vector<char> memory;
  stack_t before;
  SignalStack() : memory(64 << 10) {
    stack_t own = {};
    own.ss_sp = memory.data();
    own.ss_size = memory.size();
    sigaltstack(&own, &before);
  }
  ~SignalStack() { sigaltstack(&before, nullptr); }
};

}  // namespace convgen_emulator

using namespace convgen_emulator;

#define CONVGEN_EXPORT extern "C" __attribute__((visibility("default")))

#define CONVGEN_INSTRUMENTED(BYTES)                                          \
  CONVGEN_EXPORT void __asan_load##BYTES##_noabort(u64 address) {            \
    instrumented(address, BYTES, BYTES, false, __builtin_return_address(0)); \
  }                                                                          \
  CONVGEN_EXPORT void __asan_store##BYTES##_noabort(u64 address) {           \
    instrumented(address, BYTES, BYTES, true, __builtin_return_address(0));  \
  }
CONVGEN_INSTRUMENTED(1)
CONVGEN_INSTRUMENTED(2)
CONVGEN_INSTRUMENTED(4)
CONVGEN_INSTRUMENTED(8)
CONVGEN_INSTRUMENTED(16)
CONVGEN_EXPORT void __asan_loadN_noabort(u64 address, u64 bytes) {
  instrumented(address, bytes, 1, false, __builtin_return_address(0));
}
CONVGEN_EXPORT void __asan_storeN_noabort(u64 address, u64 bytes) {
  instrumented(address, bytes, 1, true, __builtin_return_address(0));
}
CONVGEN_EXPORT void __asan_handle_no_return() {}

CONVGEN_EXPORT void __ubsan_handle_out_of_bounds_abort(SourceLocation* where, u64 index) {
  undefined(*where, "out of bounds", format("index %lld of a local array", (long long)index));
}
CONVGEN_EXPORT void __ubsan_handle_type_mismatch_v1_abort(SourceLocation* where, u64 address) {
  const u8 alignment = reinterpret_cast<const u8*>(where + 1)[sizeof(void*)];  // its logarithm
  undefined(*where, "misaligned",
            format("%s, which is not a multiple of %u bytes", describe_global(address).c_str(), 1u << alignment));
}
#define CONVGEN_OVERFLOW(NAME, SIGN)                                                                  \
  CONVGEN_EXPORT void __ubsan_handle_##NAME##_overflow_abort(SourceLocation* where, u64 left, u64 right) { \
    undefined(*where, "overflow",                                                                     \
              format("%lld " SIGN " %lld does not fit its type", (long long)left, (long long)right)); \
  }
CONVGEN_OVERFLOW(add, "+")
CONVGEN_OVERFLOW(sub, "-")
CONVGEN_OVERFLOW(mul, "*")
CONVGEN_EXPORT void __ubsan_handle_negate_overflow_abort(SourceLocation* where, u64 value) {
  undefined(*where, "overflow", format("-(%lld) does not fit its type", (long long)value));
}
CONVGEN_EXPORT void __ubsan_handle_divrem_overflow_abort(SourceLocation* where, u64 left, u64 right) {
  undefined(*where, "arithmetic", format("%lld / %lld", (long long)left, (long long)right));
}
CONVGEN_EXPORT void __ubsan_handle_shift_out_of_bounds_abort(SourceLocation* where, u64 left, u64 right) {
  undefined(*where, "arithmetic", format("%lld shifted by %lld bits", (long long)left, (long long)right));
}

namespace convgen_emulator {
// PTX ISA, "ld.global.nc": of data that is read only while the kernel runs.
void check_unwritten(const void* p, u64 bytes, int line) {
  each_written(u64(p), bytes, [&](const Writer&, u64 at) {
    finding("race", line,
            format("reads %s through the cache of data that nobody writes: this launch has", describe_global(at).c_str()));
    return true;
  });
}
}  // namespace convgen_emulator

void __threadfence_block() { current->before_fence = current->clock.seen; }

void __threadfence() {
  current->clock.published.join(current->clock.seen);
  __threadfence_block();
  tick(current);  // what it writes from here on wants another fence
}

namespace convgen_emulator {
void atomic(void* p, u64 bytes, bool sum, int line) {
  check_global(p, bytes, true, sum ? &a_reduction : &flag, line);
  check_global_aligned(u64(p), bytes, line);
  synchronize(u64(p), true);
}
}  // namespace convgen_emulator

// What other blocks see follows from no reduction, which gives no result.
void red_global_add_f32(float* address, float v, int line) {
  check_global(address, 4, true, &a_reduction, line);
  fetch_add(address, v);
}

static void red_global_add_vector(float* address, std::initializer_list<float> values, int line) {
  const u64 bytes = values.size() * 4;
  check_global(address, bytes, true, &a_reduction, line);
  check_global_aligned(u64(address), bytes, line);
  for (const float v : values) fetch_add(address++, v);
}

void red_global_add_v2_f32(float* address, float x, float y, int line) {
  red_global_add_vector(address, {x, y}, line);
}

void red_global_add_v4_f32(float* address, float x, float y, float z, float w, int line) {
  red_global_add_vector(address, {x, y, z, w}, line);
}
