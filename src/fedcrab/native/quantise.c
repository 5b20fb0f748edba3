/* fedcrab/history/quantise.py row by row, while the row is in the cache. The operations and their types are those
   of the numpy way, so that scales, codes and sums are the same to the last bit. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256 /* numbers that share a scale */
#define TINY 0x1p-100 /* a row without a larger number is stored as zeros */

/* The largest |u| of a block. Positive floats sort like their bits. */
static float highest(const float *numbers) {
    int32_t most = 0, bits;
    float found;
    for (int i = 0; i < BLOCK; i++) {
        memcpy(&bits, numbers + i, sizeof bits);
        bits &= 0x7fffffff;
        most = bits > most ? bits : most;
    }
    memcpy(&found, &most, sizeof found);
    return found;
}

/* The bits of the smallest float16 that is not below a value between 0 and 1. */
static uint16_t half_up(double value) {
    uint64_t bits;
    if (value < 0x1p-14) /* too small for a leading one: a multiple of 2^-24 */
        return (uint16_t)ceil(value * 0x1p24);
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits >> 42) - (1008 << 10) + ((bits & 0x3ffffffffff) != 0)); /* 10 of 52 digits stay */
}

static double half_value(uint16_t half) {
    uint64_t bits = (uint64_t)(half + (1008 << 10)) << 42;
    double value;
    if (half < 1024)
        return half * 0x1p-24;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Codes side by side: those of two bytes in one, the first in the higher bits. */
static void join(const uint8_t *codes, int count, int bits, uint8_t *joined) {
    for (int i = 0; i < count; i++)
        joined[i] = (uint8_t)(codes[2 * i] << bits | codes[2 * i + 1]);
}

/* Write the codes of a whole block; return Σ ((q - u) / s)², its halves added to each other until one is left. */
static float put_codes(const float *numbers, float inverse, int bits, uint8_t *out) {
    const float round = 12582912.0f; /* 1.5·2²³: adding it leaves no digits after the point; ties go to even */
    const int32_t zero = (1 << (bits - 1)) - 1;
    float squares[BLOCK];
    uint8_t codes[BLOCK], pairs[BLOCK / 2];
    for (int i = 0; i < BLOCK; i++) {
        float scaled = numbers[i] * inverse, rounded = (scaled + round) - round, error = scaled - rounded;
        squares[i] = error * error;
        codes[i] = (uint8_t)((int32_t)rounded + zero);
    }
    if (bits == 8)
        memcpy(out, codes, BLOCK);
    else if (bits == 4)
        join(codes, BLOCK / 2, 4, out);
    else {
        join(codes, BLOCK / 2, 2, pairs);
        join(pairs, BLOCK / 4, 4, out);
    }
#pragma GCC unroll 8
    for (int half = BLOCK / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            squares[i] += squares[i + half];
    return squares[0];
}

static double put_row(const float *numbers, size_t width, int bits, uint8_t *codes, uint16_t *scales, float *squares) {
    double largest = 0, most = (1 << (bits - 1)) - 1;
    size_t whole = width / BLOCK, rest = width % BLOCK, blocks = whole + (rest > 0);
    float last[BLOCK] = {0}; /* a short last block is filled up with zeros */
    memcpy(last, numbers + BLOCK * whole, sizeof(float) * rest);
    for (size_t b = 0; b < blocks; b++) {
        squares[b] = highest(b < whole ? numbers + BLOCK * b : last); /* for now */
        largest = squares[b] > largest ? squares[b] : largest;
    }
    if (largest < TINY)
        largest = 0;
    for (size_t b = 0; b < blocks; b++, codes += BLOCK * bits / 8) {
        const float *block = b < whole ? numbers + BLOCK * b : last;
        scales[b] = largest > 0 ? half_up(squares[b] / (largest * most)) : 0;
        double step = half_value(scales[b]) * largest;
        squares[b] = put_codes(block, step > 0 ? (float)(1 / step) : 0, bits, codes);
    }
    return largest;
}

/* The codes of one byte after the other, as one byte each; the first is in the highest bits. */
static void split(const uint8_t *joined, int bits, uint8_t *codes) {
    if (bits == 8)
        memcpy(codes, joined, BLOCK);
    else if (bits == 4)
        for (int i = 0; i < BLOCK / 2; i++) {
            codes[2 * i] = joined[i] >> 4;
            codes[2 * i + 1] = joined[i] & 15;
        }
    else
        for (int i = 0; i < BLOCK; i++)
            codes[i] = joined[i / 4] >> (6 - 2 * (i % 4)) & 3;
}

static void get_numbers(const uint8_t *joined, float step, int bits, float *numbers) {
    const int32_t zero = (1 << (bits - 1)) - 1;
    uint8_t codes[BLOCK];
    split(joined, bits, codes);
    for (int i = 0; i < BLOCK; i++)
        numbers[i] = (float)(codes[i] - zero) * step;
}

/* The numbers step·code of rows whose codes are ``code_stride`` bytes apart, with one step per block. */
void dequantise_rows(const uint8_t *codes, size_t rows, size_t code_stride, const float *steps, size_t width, int bits,
                     float *numbers, size_t stride) {
    size_t whole = width / BLOCK, rest = width % BLOCK, blocks = whole + (rest > 0);
    float last[BLOCK];
    for (size_t row = 0; row < rows; row++, codes += code_stride, steps += blocks, numbers += stride) {
        for (size_t b = 0; b < whole; b++)
            get_numbers(codes + BLOCK * bits / 8 * b, steps[b], bits, numbers + BLOCK * b);
        if (rest) {
            get_numbers(codes + BLOCK * bits / 8 * whole, steps[whole], bits, last);
            memcpy(numbers + BLOCK * whole, last, sizeof(float) * rest);
        }
    }
}

/* Quantise rows that are ``stride`` numbers apart; their codes are ``code_stride`` bytes apart. */
void quantise_rows(const float *numbers, size_t rows, size_t stride, size_t width, int bits, uint8_t *codes,
                   size_t code_stride, double *largest, uint16_t *scales, float *squares) {
    size_t blocks = (width + BLOCK - 1) / BLOCK;
    for (size_t row = 0; row < rows; row++)
        largest[row] = put_row(numbers + stride * row, width, bits, codes + code_stride * row, scales + blocks * row,
                               squares + blocks * row);
}
