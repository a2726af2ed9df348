// Exact sign of a sum of a row's numbers, by a group of threads: for comparisons that a rounded sum cannot decide.
// The sum is added up digit by digit, the highest first, until what is left below cannot change its sign. Unlike
// common/exact_sum.h it needs no memory, but a pass over the row for each digit; ties end when no bits are left.
#pragma once

#include "projections/cuda/row.h"

namespace pyrobust::cuda {

// +-(high 2^64 + low) 2^exponent
struct Term {
  uint64_t high, low;
  int exponent;
  bool negative;
};

PYROBUST_GROUP Term term(double a) {
  const uint64_t u = bits<uint64_t>(a);
  const int field = static_cast<int>((u >> 52) & 0x7ffu);
  const uint64_t fraction = u & 0xfffffffffffffu;
  return {0, field == 0 ? fraction : fraction | 0x10000000000000u, (field == 0 ? 1 : field) - 1075, (u >> 63) != 0};
}

// a * b, not rounded: 53 by 53 bits from four products of 32-bit halves.
PYROBUST_GROUP Term product_term(double a, double b) {
  const Term p = term(a), q = term(b);
  const uint64_t half = 0xffffffffu, pl = p.low & half, ph = p.low >> 32, ql = q.low & half, qh = q.low >> 32;
  const uint64_t ll = pl * ql, middle = pl * qh + ph * ql + (ll >> 32);  // below 2^21 2^32 2 + 2^32
  return {ph * qh + (middle >> 32), (middle << 32) | (ll & half), p.exponent + q.exponent, p.negative != q.negative};
}

// The exponent e of a number: |a| < 2^e.
PYROBUST_GROUP int exponent_above(double a) {
  const int field = static_cast<int>((bits<uint64_t>(a) >> 52) & 0x7ffu);
  return (field == 0 ? 1 : field) - 1022;
}

constexpr int kDigitBits = 24;  // of sums over up to 2^38 elements

// floor(|t| / 2^p) modulo 2^24.
PYROBUST_GROUP int64_t digit(const Term& t, int p) {
  const int shift = p - t.exponent;
  uint64_t word = 0;
  if (shift >= 128 || shift <= -kDigitBits)
    word = 0;
  else if (shift >= 64)
    word = t.high >> (shift - 64);
  else if (shift > 0)
    word = (t.low >> shift) | (t.high << (64 - shift));
  else
    word = t.low << -shift;
  return static_cast<int64_t>(word & ((1u << kDigitBits) - 1));
}

// Whether |t| has bits below 2^p.
PYROBUST_GROUP bool has_below(const Term& t, int p) {
  const int shift = p - t.exponent;
  if (shift <= 0) return false;
  if (shift >= 128) return (t.low | t.high) != 0;
  if (shift >= 64) return t.low != 0 || (t.high & ((uint64_t{1} << (shift - 64)) - 1)) != 0;
  return (t.low & ((uint64_t{1} << shift) - 1)) != 0;
}

// -1, 0 or 1. each(f) calls f for the calling thread's terms, all below 2^top in magnitude.
template <class Group, class Each>
PYROBUST_GROUP int exact_sign(Group& group, int top, const Each& each) {
  int64_t sum = 0;  // of the terms, each truncated to a multiple of 2^p
  for (int p = top - kDigitBits;; p -= kDigitBits) {
    int64_t part[2] = {0, 0};  // the digits, and the number of terms with bits below
    each([&](const Term& t) {
      const int64_t d = digit(t, p);
      part[0] += t.negative ? -d : d;
      part[1] += has_below(t, p) ? 1 : 0;
    });
    group.add(part);
    sum = sum * (int64_t{1} << kDigitBits) + part[0];
    // What lies below is less than one unit for each such term.
    if (part[1] == 0) return sum < 0 ? -1 : sum > 0 ? 1 : 0;
    if (sum >= part[1]) return 1;
    if (sum <= -part[1]) return -1;
  }
}

// Whether the sum of non-negative numbers of at most `top` is at most radius; each(f) calls f(a) for the calling
// thread's.
template <class Group, class Each>
PYROBUST_GROUP bool sum_at_most(Group& group, double top, double radius, const Each& each) {
  return exact_sign(group, exponent_above(top > radius ? top : radius), [&](const auto& f) {
           each([&](double a) { f(term(a)); });
           if (group.rank() == 0) f(term(-radius));
         }) <= 0;
}

// Whether the sum of squares is at most radius^2.
template <class Group, class Each>
PYROBUST_GROUP bool squares_at_most(Group& group, double top, double radius, const Each& each) {
  return exact_sign(group, 2 * exponent_above(top > radius ? top : radius), [&](const auto& f) {
           each([&](double a) { f(product_term(a, a)); });
           if (group.rank() == 0) f(product_term(-radius, radius));
         }) <= 0;
}

}  // namespace pyrobust::cuda
