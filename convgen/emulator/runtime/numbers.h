// Small floating-point types: their bits to float and back, as the conversion instructions round.
#pragma once

#include "convgen_emulator.h"

namespace convgen_emulator {

struct Format {
  int exponent_bits, mantissa_bits;
  u32 largest;   // bits of the largest finite number
  u32 overflow;  // bits of what a number beyond it becomes
  u32 nan;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  u32 sign() const { return 1u << (exponent_bits + mantissa_bits); }
};

constexpr Format f16_format{5, 10, 0x7bff, 0x7c00, 0x7fff};
constexpr Format e4m3_format{4, 3, 0x7e, 0x7e, 0x7f};  // no infinity: conversions saturate
constexpr Format e5m2_format{5, 2, 0x7b, 0x7b, 0x7f};

inline float decode(const Format& f, u32 bits) {
  const u32 magnitude = bits & (f.sign() - 1);
  const u32 mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  float v;
  if (magnitude > f.largest) {
    const bool infinite = mantissa == 0 && f.mantissa_bits != 3;
    v = infinite ? INFINITY : NAN;
  } else {  // a float's exponent has another bias, subnormal or not
    v = __uint_as_float(magnitude << (23 - f.mantissa_bits)) * __uint_as_float(u32(254 - f.bias()) << 23);
  }
  return bits & f.sign() ? -v : v;
}

// Rounds to nearest even.
inline u32 encode(const Format& f, float v) {
  if (v != v) return f.nan;
  const u32 sign = __float_as_uint(v) >> 31 ? f.sign() : 0;
  const float magnitude = fabsf(v);
  int exponent = int(__float_as_uint(magnitude) >> 23) - 127;
  if (exponent > f.bias() + 1) return sign | f.overflow;
  if (exponent < 1 - f.bias()) exponent = 1 - f.bias();
  const float in_last_places = magnitude * __uint_as_float(u32(127 + f.mantissa_bits - exponent) << 23);
  const u32 mantissa = __float_as_uint(in_last_places + 0x1p23f) & 0x7fffff;  // the sum has no places after the point
  // a carry out of the mantissa moves into the exponent by itself; a subnormal has exponent field 0
  const u32 bits = (u32(exponent + f.bias() - 1) << f.mantissa_bits) + mantissa;
  return sign | (bits > f.largest ? f.overflow : bits);
}

inline float decode_bf16(u16 bits) { return __uint_as_float(u32(bits) << 16); }

inline u16 encode_bf16(float v) {
  if (v != v) return 0x7fff;
  const u32 bits = __float_as_uint(v);
  return u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline int element_bytes(Type t) {
  switch (t) {
    case Type::f16:
    case Type::bf16: return 2;
    case Type::tf32: return 4;
    default: return 1;
  }
}

// Element `index` of packed elements as float (s8 too: exact).  Tensor cores read the upper 19 bits of a tf32.
struct Decoder {
  Decoder() {
    for (u32 i = 0; i < 65536; ++i) half[i] = decode(f16_format, i);
    for (u32 i = 0; i < 256; ++i) {
      small[0][i] = decode(e4m3_format, i);
      small[1][i] = decode(e5m2_format, i);
      small[2][i] = float((signed char)(i));
    }
  }
  // `count` elements from `bytes`, each `step` floats after the other.
  void expand(Type t, const u8* bytes, int count, float* to, int step) const {
    for (int i = 0; i < count; ++i, to += step) {
      u16 word;
      u32 wide;
      switch (t) {
        case Type::f16:
          memcpy(&word, bytes + 2 * i, 2);
          *to = half[word];
          break;
        case Type::bf16:
          memcpy(&word, bytes + 2 * i, 2);
          *to = decode_bf16(word);
          break;
        case Type::tf32:
          memcpy(&wide, bytes + 4 * i, 4);
          *to = __uint_as_float(wide & 0xffffe000);
          break;
        case Type::e4m3: *to = small[0][bytes[i]]; break;
        case Type::e5m2: *to = small[1][bytes[i]]; break;
        case Type::s8: *to = small[2][bytes[i]]; break;
      }
    }
  }
  float half[65536];
  float small[3][256];
};

inline const Decoder& decoder() {
  static const Decoder table;
  return table;
}

}  // namespace convgen_emulator
