// The inner loops of perturbation_leaves.h, over the lanes that the including file chose.
#include "cpu/lanes.inl"

namespace pyrobust::cpu {
namespace {

PYROBUST_TARGET inline V sign_of(V a) {
  const V zero = splat(0);
  return where_less(zero, a, splat(1), where_less(a, zero, splat(-1), zero));
}

// x + z, not beyond the real sum as seen from x: the rounded sum s with its error e (Knuth's TwoSum), moved by a step or two
// towards x where e says that it lies beyond.
PYROBUST_TARGET inline V add_toward_first(V x, V z) {
  const V zero = splat(0);
  const V s = add(x, z), back = sub(s, x);
  const V e = add(sub(x, sub(s, back)), sub(z, back));
  const V outward_e = where_less(z, zero, sub(zero, e), e), outward_s = where_less(z, zero, sub(zero, s), s);
  const V nearer = mul(s, where_less(zero, outward_s, splat(1 - 0x1p-53), splat(1 + 0x1p-52)));
  const V moved = where_less(outward_e, zero, nearer, s);
  return where_less(z, zero, min(moved, x), max(moved, x));
}

// Bits of the lanes in [lower, upper]; NaN is outside.
PYROBUST_TARGET inline unsigned within(V x, V lower, V upper) {
  const V below_zero = splat(-0x1p-1074);
  return less_bits(below_zero, sub(x, lower)) & less_bits(below_zero, sub(upper, x));
}

// Eight elements from `at` on of rows of n, or as many as there are.
template <class T>
class Block {
 public:
  int64_t at, n;
  Block(int64_t begin, int64_t end) : at(begin), n(end) {}
  PYROBUST_TARGET V get(const T* p) const {
    // Behind the end the first element of the block stands again.
    return n - at >= 8 ? load(p + at) : load(Tail<T>(p + at, n - at, p[at]).element);
  }
  PYROBUST_TARGET void set_toward(T* p, V a, V target) const {
    T last[8];
    put_toward(n - at >= 8 ? p + at : last, a, target);
    finish(p, last);
  }
  PYROBUST_TARGET void set_nearest(T* p, V a) const {
    T last[8];
    put_nearest(n - at >= 8 ? p + at : last, a);
    finish(p, last);
  }

 private:
  void finish(T* p, const T* last) const {
    if (n - at < 8)
      for (int64_t l = 0; at + l < n; ++l) p[at + l] = last[l];
  }
};

template <class T>
PYROBUST_TARGET bool add(const T* x, const T* z, T* out, int64_t n, double lower, double upper) {
  const V lower8 = splat(lower), upper8 = splat(upper);
  unsigned good = 0xffu;
  for (Block<T> block(0, n); block.at < n; block.at += 8) {
    const V x8 = block.get(x), z8 = block.get(z);
    good &= within(x8, lower8, upper8) & (less_bits(z8, splat(1)) | less_bits(splat(0), z8));
    block.set_toward(out, min(max(add_toward_first(x8, z8), lower8), upper8), x8);
  }
  return good == 0xffu;
}

template <class T>
PYROBUST_TARGET bool linf_step(const T* x_adv, const T* grad, const T* x, T* out, int64_t n, double step,
                               double epsilon, double lower, double upper) {
  const V lower8 = splat(lower), upper8 = splat(upper), step8 = splat(step), epsilon8 = splat(epsilon);
  const V minus_epsilon8 = splat(-epsilon);
  unsigned good = 0xffu;
  for (Block<T> block(0, n); block.at < n; block.at += 8) {
    const V x8 = block.get(x);
    good &= within(x8, lower8, upper8);
    const V stepped = add(block.get(x_adv), mul(step8, sign_of(block.get(grad))));
    const V low = max(add_toward_first(x8, minus_epsilon8), lower8), high = min(add_toward_first(x8, epsilon8), upper8);
    block.set_toward(out, min(max(stepped, low), high), x8);
  }
  return good == 0xffu;
}

template <class T>
PYROBUST_TARGET int64_t count(const T* grad, int64_t n, double threshold) {
  const V threshold8 = splat(threshold), zero = splat(0);
  int64_t total = 0;
  for (Block<T> block(0, n); block.at < n; block.at += 8) {
    const unsigned lanes = n - block.at >= 8 ? 0xffu : (1u << (n - block.at)) - 1u;
    const V a = abs(block.get(grad));
    total += __builtin_popcount(~less_bits(a, threshold8) & less_bits(zero, a) & lanes);
  }
  return total;
}

template <class T>
PYROBUST_TARGET void l1_step(const T* x_adv, const T* grad, const T* x, T* out, int64_t n, double threshold,
                             double step) {
  const V threshold8 = splat(threshold), step8 = splat(step), zero = splat(0);
  for (Block<T> block(0, n); block.at < n; block.at += 8) {
    const V g = block.get(grad), delta = sub(block.get(x_adv), block.get(x));
    const V move = where_less(abs(g), threshold8, zero, mul(step8, sign_of(g)));
    const V y = add(delta, move);
    block.set_nearest(out, y);
  }
}

template <class T>
constexpr PerturbationLeaves<T> kLeaves = {add<T>, linf_step<T>, count<T>, l1_step<T>};

}  // namespace
}  // namespace pyrobust::cpu
