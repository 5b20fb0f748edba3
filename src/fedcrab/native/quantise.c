/* The two passes of fedcrab/history/quantise.py over the numbers, with the same operations in float32, so that
   codes and sums are the same to the last bit. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256 /* numbers that share a scale */

static size_t least(size_t one, size_t other) { return one < other ? one : other; }

/* The largest |u| of each block of each row. Positive floats sort like their bits. */
void quantise_highest(const float *numbers, size_t rows, size_t width, size_t stride, float *highest) {
    for (size_t row = 0; row < rows; row++, numbers += stride)
        for (size_t first = 0; first < width; first += BLOCK) {
            size_t count = least(BLOCK, width - first);
            int32_t most = 0, bits[BLOCK];
            memcpy(bits, numbers + first, sizeof(float) * count);
            for (size_t i = 0; i < count; i++) {
                int32_t size = bits[i] & 0x7fffffff;
                most = size > most ? size : most;
            }
            memcpy(highest++, &most, sizeof most);
        }
}


/* The codes of one whole block; returns Σ ((q - u) / s)², its halves added to each other until one is left. */
static float quantise_block(const float *numbers, float inverse, int bits, uint8_t *out) {
    const float round = 12582912.0f; /* 1.5·2²³: adding it leaves no digits after the point; ties go to even */
    const float zero = (float)((1 << (bits - 1)) - 1);
    float squares[BLOCK];
    uint8_t codes[BLOCK], half[BLOCK / 2];
    for (int i = 0; i < BLOCK; i++) {
        float scaled = numbers[i] * inverse, rounded = (scaled + round) - round, error = scaled - rounded;
        squares[i] = error * error;
        codes[i] = (uint8_t)(int32_t)(rounded + zero);
    }
    if (bits == 8)
        memcpy(out, codes, BLOCK);
    else if (bits == 4)
        for (int i = 0; i < BLOCK / 2; i++)
            out[i] = (uint8_t)(codes[2 * i] << 4 | codes[2 * i + 1]);
    else {
        for (int i = 0; i < BLOCK / 2; i++)
            half[i] = (uint8_t)(codes[2 * i] << 2 | codes[2 * i + 1]);
        for (int i = 0; i < BLOCK / 4; i++)
            out[i] = (uint8_t)(half[2 * i] << 4 | half[2 * i + 1]);
    }
    for (int half_of = BLOCK / 2; half_of; half_of /= 2)
        for (int i = 0; i < half_of; i++)
            squares[i] += squares[i + half_of];
    return squares[0];
}

/* The codes of each row, whose rows are code_stride bytes apart; a short last block is filled up with zeros. */
void quantise_codes(const float *numbers, size_t rows, size_t width, size_t stride, const float *inverse, int bits,
                    uint8_t *codes, size_t code_stride, float *squares) {
    for (size_t row = 0; row < rows; row++, numbers += stride, codes += code_stride) {
        uint8_t *out = codes;
        for (size_t first = 0; first < width; first += BLOCK, out += BLOCK * bits / 8) {
            float last[BLOCK] = {0};
            int is_short = width - first < BLOCK;
            if (is_short)
                memcpy(last, numbers + first, sizeof(float) * (width - first));
            *squares++ = quantise_block(is_short ? last : numbers + first, *inverse++, bits, out);
        }
    }
}
