// Findings: what a kernel did wrong, where, and which threads.
#pragma once

#include <stdarg.h>
#include <stdio.h>

#include <string>
#include <utility>
#include <vector>

#include "convgen_emulator.h"

namespace convgen_emulator {

__attribute__((format(printf, 1, 2))) inline std::string format(const char* pattern, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, pattern);
  vsnprintf(buffer, sizeof buffer, pattern, arguments);
  va_end(arguments);
  return buffer;
}

struct Finding {
  const char* kind;
  std::string message;
  int line;     // of the generated file; 0 where `address` tells it
  u64 address;  // of the machine instruction, less the image's base; 0 where `line` tells it
  u32 block;    // flat index in the grid
  std::vector<u32> threads;
};

class Report {
 public:
  static constexpr size_t enough = 12;

  // Whether no more are wanted.  A finding of the same kind at the same place adds its threads.
  bool add(Finding found) {
    for (Finding& f : findings_) {
      if (f.kind != found.kind || f.line != found.line || f.address != found.address) continue;
      if (f.block == found.block && f.threads.size() < 1024) {
        f.threads.insert(f.threads.end(), found.threads.begin(), found.threads.end());
      }
      return findings_.size() >= enough;
    }
    findings_.push_back(std::move(found));
    return findings_.size() >= enough;
  }
  bool empty() const { return findings_.empty(); }
  std::string json() const {
    std::string text = "[";
    for (const Finding& f : findings_) {
      text += text.size() > 1 ? ",{" : "{";
      text += format("\"kind\":\"%s\",\"line\":%d,\"address\":%llu,\"block\":%u,\"threads\":[", f.kind, f.line,
                     f.address, f.block);
      for (size_t i = 0; i < f.threads.size(); ++i) text += format(i ? ",%u" : "%u", f.threads[i]);
      text += "],\"message\":\"";
      for (char c : f.message) {
        if (c == '"' || c == '\\') text += '\\';
        text += c;
      }
      text += "\"}";
    }
    return text + "]";
  }

  bool trapped = false;  // one of the findings is a trap, which does not say why

 private:
  std::vector<Finding> findings_;
};

}  // namespace convgen_emulator
