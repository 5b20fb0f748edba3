/* Vectors of float32 as wide as the processor's registers, and products of small matrices.

   Matrices that are multiplied from the right or written to have rows of whole vectors, aligned. */

#ifndef FEDCRAB_VECTORS_H
#define FEDCRAB_VECTORS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined __AVX512F__
enum { LANES = 16, TALL = 6, WIDE = 4 }; /* 24 sums, 4 of b and 1 of a fit 32 registers */
#elif defined __AVX2__
enum { LANES = 8, TALL = 6, WIDE = 2 }; /* 12 sums, 2 of b and 1 of a fit 16 registers */
#else
enum { LANES = 4, TALL = 4, WIDE = 2 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* Numbers in a row of whole cache lines, which are whole vectors at every level. */
static inline int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

/* One or the other, number by number, as the mask of a comparison says. */
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* c += alpha a b of `tall` rows and `wide` vectors; both are constants where this is inlined. */
INLINE void add_block(const int tall, const int wide, float *c, int64_t ldc, const float *a, int64_t row,
                      int64_t column, const float *b, int64_t ldb, int64_t k, float alpha) {
    vec sum[TALL][WIDE];
    for (int i = 0; i < tall; i++)
        for (int j = 0; j < wide; j++) sum[i][j] = (vec){0};
    for (int64_t p = 0; p < k; p++) {
        const vec *right = (const vec *)(b + p * ldb);
        const float *left = a + p * column;
        for (int i = 0; i < tall; i++)
            for (int j = 0; j < wide; j++) sum[i][j] += left[i * row] * right[j];
    }
    for (int i = 0; i < tall; i++)
        for (int j = 0; j < wide; j++) ((vec *)(c + i * ldc))[j] += alpha * sum[i][j];
}

INLINE void add_rows(const int wide, float *c, int64_t ldc, const float *a, int64_t row, int64_t column,
                     const float *b, int64_t ldb, int64_t m, int64_t k, float alpha) {
    for (; m >= TALL && m != 8; m -= TALL, c += TALL * ldc, a += TALL * row) /* 8 is 4 and 4, not 6, 1 and 1 */
        add_block(TALL, wide, c, ldc, a, row, column, b, ldb, k, alpha);
    for (; m >= 4; m -= 4, c += 4 * ldc, a += 4 * row)
        add_block(4, wide, c, ldc, a, row, column, b, ldb, k, alpha);
    for (; m >= 1; m -= 1, c += ldc, a += row) add_block(1, wide, c, ldc, a, row, column, b, ldb, k, alpha);
}

/* c += alpha a b, where a (m, k) has any strides; b (k, n) and c (m, n) have rows of whole vectors.

   b is taken in pieces that stay in the first cache while every row of a passes. */
static void add_product(float *c, int64_t ldc, const float *a, int64_t row, int64_t column, const float *b,
                        int64_t ldb, int64_t m, int64_t k, int64_t n, float alpha) {
    enum { DEEP = 64 };
    for (int64_t p = 0; p < k; p += DEEP) {
        int64_t deep = k - p < DEEP ? k - p : DEEP, j = 0;
        const float *left = a + p * column, *right = b + p * ldb;
        for (; j + WIDE * LANES <= n; j += WIDE * LANES)
            add_rows(WIDE, c + j, ldc, left, row, column, right + j, ldb, m, deep, alpha);
        for (; j < n; j += LANES) add_rows(1, c + j, ldc, left, row, column, right + j, ldb, m, deep, alpha);
    }
}

#if defined __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLE __builtin_shufflevector
#endif
#endif

/* to (columns, rows) = the transpose of from (rows, columns) */
INLINE void transpose_tile(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows, int64_t columns) {
    int64_t i = 0;
#if defined SHUFFLE
    typedef float quad __attribute__((vector_size(16), aligned(4), may_alias));
    for (; i + 4 <= rows; i += 4) {
        const float *f = from + i * ldf;
        int64_t j = 0;
        for (; j + 4 <= columns; j += 4) {
            quad a = *(quad *)(f + j), b = *(quad *)(f + ldf + j), c = *(quad *)(f + 2 * ldf + j),
                 d = *(quad *)(f + 3 * ldf + j);
            quad ab = SHUFFLE(a, b, 0, 4, 1, 5), cd = SHUFFLE(c, d, 0, 4, 1, 5);
            *(quad *)(to + j * ldt + i) = SHUFFLE(ab, cd, 0, 1, 4, 5);
            *(quad *)(to + (j + 1) * ldt + i) = SHUFFLE(ab, cd, 2, 3, 6, 7);
            ab = SHUFFLE(a, b, 2, 6, 3, 7), cd = SHUFFLE(c, d, 2, 6, 3, 7);
            *(quad *)(to + (j + 2) * ldt + i) = SHUFFLE(ab, cd, 0, 1, 4, 5);
            *(quad *)(to + (j + 3) * ldt + i) = SHUFFLE(ab, cd, 2, 3, 6, 7);
        }
        for (; j < columns; j++)
            for (int64_t k = 0; k < 4; k++) to[j * ldt + i + k] = f[k * ldf + j];
    }
#endif
    for (; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * ldt + i] = from[i * ldf + j];
}

/* The same in tiles, so that cache lines are used whole on both sides. */
static void transpose(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows, int64_t columns) {
    enum { TILE = 16 };
    for (int64_t i = 0; i < rows; i += TILE)
        for (int64_t j = 0; j < columns; j += TILE)
            if (rows - i >= TILE && columns - j >= TILE)
                transpose_tile(to + j * ldt + i, ldt, from + i * ldf + j, ldf, TILE, TILE);
            else
                transpose_tile(to + j * ldt + i, ldt, from + i * ldf + j, ldf, rows - i < TILE ? rows - i : TILE,
                               columns - j < TILE ? columns - j : TILE);
}

/* e^x, accurate to two units in the last place; NaN stays NaN, and below -87 it is 2^-126 or so. */
INLINE vec exponential(vec x) {
    x = choose(x < -87.0f, (vec){0} - 87.0f, x);
    x = choose(x > 88.0f, (vec){0} + 88.0f, x);
    vec whole = x * 1.44269504f + 12582912.0f; /* rounds: 1.5 * 2^23 leaves no room for a fraction */
    ivec power = (ivec)whole;
    whole -= 12582912.0f;
    x = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = x * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * x + 8.3334519073e-3f;
    p = p * x + 4.1665795894e-2f;
    p = p * x + 1.6666665459e-1f;
    p = p * x + 5.0000001201e-1f;
    p = p * x * x + x + 1.0f;
    return p * (vec)((power << 23) + (127 << 23));
}

/* z becomes the gradient of its summed cross-entropy, softmax(z) - onehot(labels), in rows of `classes`. */
static void softmax_error(float *z, int64_t width, int64_t rows, int64_t classes, const int64_t *labels) {
    for (int64_t i = 0; i < rows; i++, z += width) {
        float highest = z[0], sum = 0;
        for (int64_t j = 1; j < classes; j++) highest = z[j] > highest ? z[j] : highest;
        for (int64_t j = 0; j < width; j += LANES) *(vec *)(z + j) = exponential(*(vec *)(z + j) - highest);
        for (int64_t j = 0; j < classes; j++) sum += z[j];
        float share = 1 / sum;
        for (int64_t j = 0; j < classes; j++) z[j] *= share;
        for (int64_t j = classes; j < width; j++) z[j] = 0;
        z[labels[i]] -= 1;
    }
}

#endif
