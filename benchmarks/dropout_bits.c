/* Write the hash of `layers.Dropout` as a stream of 32-bit words, for a battery of statistical tests:

       apt-get install dieharder
       gcc -O2 benchmarks/dropout_bits.c -o /tmp/dropout_bits
       for stream in indices calls seeds; do /tmp/dropout_bits $stream | dieharder -g 200 -a -m 0.1; done

   Consecutive indices of one call, one index in consecutive calls, or one index of consecutive seeds. With "pcg3d" as a
   second argument it is that hash instead, by Jarzynski and Olano (JCGT 9(3), 2020), which fails on indices:

       /tmp/dropout_bits indices pcg3d | dieharder -g 200 -d 5 */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t mix(uint32_t word) {
  word = (word ^ word >> 16) * 0x85ebca6bu;
  word = (word ^ word >> 13) * 0xc2b2ae35u;
  return word ^ word >> 16;
}

static uint32_t hash(uint32_t index, uint32_t seed, uint32_t call) {
  uint32_t first = mix(mix(seed) ^ call), second = mix(first + 0x9e3779b9u);
  return mix(mix(index ^ first) ^ second);
}

static uint32_t pcg3d(uint32_t x, uint32_t y, uint32_t z) {
  x = x * 1664525u + 1013904223u, y = y * 1664525u + 1013904223u, z = z * 1664525u + 1013904223u;
  x += y * z, y += z * x, z += x * y;
  x ^= x >> 16, y ^= y >> 16, z ^= z >> 16;
  x += y * z, y += z * x, z += x * y;
  return z;
}

int main(int argc, char **argv) {
  const char *stream = argc > 1 ? argv[1] : "indices";
  uint32_t (*bits)(uint32_t, uint32_t, uint32_t) = argc > 2 && !strcmp(argv[2], "pcg3d") ? pcg3d : hash;
  static uint32_t words[1 << 16];
  uint32_t number = 0;
  do {
    for (int i = 0; i < 1 << 16; i++, number++)
      words[i] = !strcmp(stream, "calls")   ? bits(1000, 12345, number)
                 : !strcmp(stream, "seeds") ? bits(1000, number, 7)
                                            : bits(number, 12345, 7);
  } while (fwrite(words, sizeof words, 1, stdout) == 1);
  return 0;
}
