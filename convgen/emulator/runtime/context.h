// Fibers: a stack each, and a switch between two of them that keeps the callee-saved registers.
#pragma once

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace convgen_emulator {

struct Context {
  void* stack_pointer = nullptr;
};

// Saves this context in `from` and continues `to`.
extern "C" void convgen_switch(Context* from, const Context* to);
// Where a fresh fiber begins: calls the function whose address stands on its stack.
extern "C" void convgen_fiber_start();

#if defined(__x86_64__)
asm(R"(
.text
.globl convgen_switch
.hidden convgen_switch
convgen_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.globl convgen_fiber_start
.hidden convgen_fiber_start
convgen_fiber_start:
.cfi_startproc
.cfi_undefined rip
  callq *%rbx
  ud2
.cfi_endproc
)");
constexpr int saved_words = 6, start_word = 4;  // r15 r14 r13 r12 rbx rbp, then the return address
#elif defined(__aarch64__)
#if defined(__APPLE__)
#define CONVGEN_SYMBOL(name) "_" #name
#else
#define CONVGEN_SYMBOL(name) #name
#endif
asm(".text\n.p2align 2\n"
    ".globl " CONVGEN_SYMBOL(convgen_switch) "\n" CONVGEN_SYMBOL(convgen_switch) ":\n"
    R"(
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  ldr x9, [x1]
  mov sp, x9
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)"
    ".globl " CONVGEN_SYMBOL(convgen_fiber_start) "\n" CONVGEN_SYMBOL(convgen_fiber_start) ":\n"
    "  blr x19\n"
    "  brk #1\n");
constexpr int saved_words = 20, start_word = 0, link_word = 11;
#else
#error "the emulator switches fibers on x86-64 and on 64-bit ARM"
#endif

// A stack with a page below it that faults.
class Stack {
 public:
  static constexpr size_t bytes = 256 << 10;

  Stack() {
    const size_t page = sysconf(_SC_PAGESIZE);
    void* p = mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    mprotect(p, page, PROT_NONE);
    mapped_ = p;
    low_ = static_cast<char*>(p) + page;
  }
  ~Stack() {
    if (mapped_) munmap(mapped_, bytes + sysconf(_SC_PAGESIZE));
  }
  Stack(Stack&& other) noexcept : mapped_(other.mapped_), low_(other.low_) { other.mapped_ = other.low_ = nullptr; }
  Stack(const Stack&) = delete;

  char* low() const { return low_; }

  // Forgets what an earlier launch had here: variables hold what nobody has assigned.
  void forget() const {
    constexpr size_t used = 8192;
    memset(low_ + bytes - used, 0xfe, used);
  }

  // A context that calls `start` on this stack.
  Context begin(void (*start)()) const {
    void** top = reinterpret_cast<void**>(low_ + bytes - 64);
#if defined(__x86_64__)
    void** sp = top - (saved_words + 1);
    for (int i = 0; i < saved_words; ++i) sp[i] = nullptr;
    sp[saved_words] = reinterpret_cast<void*>(&convgen_fiber_start);
#else
    void** sp = top - saved_words;
    for (int i = 0; i < saved_words; ++i) sp[i] = nullptr;
    sp[link_word] = reinterpret_cast<void*>(&convgen_fiber_start);
#endif
    sp[start_word] = reinterpret_cast<void*>(start);
    return Context{sp};
  }

 private:
  void* mapped_ = nullptr;
  char* low_ = nullptr;
};

}  // namespace convgen_emulator
