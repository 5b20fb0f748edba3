/* One step of sha256.c for LANES messages at once; included once for each number of lanes. */

#define JOINED(name, lanes) name##_##lanes
#define WITH_LANES(name, lanes) JOINED(name, lanes)
#define NAMED(name) WITH_LANES(name, LANES)
#define words NAMED(words)
#define bytes NAMED(bytes)

typedef uint32_t words __attribute__((vector_size(4 * LANES), aligned(4)));
typedef uint8_t bytes __attribute__((vector_size(4 * LANES), aligned(4)));

#ifndef __has_builtin
#define __has_builtin(name) 0
#endif

#if __has_builtin(__builtin_shufflevector) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* Exchange the upper right with the lower left quarter in each square of 2·distance words. */
#define EXCHANGE(distance, upper, lower)                                                     \
    for (int i = 0; i < LANES; i++)                                                          \
        if (!(i & distance)) {                                                               \
            words a = rows[i], b = rows[i + distance];                                       \
            rows[i] = __builtin_shufflevector(a, b, upper);                                  \
            rows[i + distance] = __builtin_shufflevector(a, b, lower);                       \
        }
#if LANES == 16
#define UPPER_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define LOWER_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define UPPER_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define LOWER_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define UPPER_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define LOWER_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define UPPER_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define LOWER_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define SWAPPED 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, \
                19, 18, 17, 16, 23, 22, 21, 20, 27, 26, 25, 24, 31, 30, 29, 28, \
                35, 34, 33, 32, 39, 38, 37, 36, 43, 42, 41, 40, 47, 46, 45, 44, \
                51, 50, 49, 48, 55, 54, 53, 52, 59, 58, 57, 56, 63, 62, 61, 60
#elif LANES == 8
#define UPPER_4 0, 1, 2, 3, 8, 9, 10, 11
#define LOWER_4 4, 5, 6, 7, 12, 13, 14, 15
#define UPPER_2 0, 1, 8, 9, 4, 5, 12, 13
#define LOWER_2 2, 3, 10, 11, 6, 7, 14, 15
#define UPPER_1 0, 8, 2, 10, 4, 12, 6, 14
#define LOWER_1 1, 9, 3, 11, 5, 13, 7, 15
#define SWAPPED 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12, \
                19, 18, 17, 16, 23, 22, 21, 20, 27, 26, 25, 24, 31, 30, 29, 28
#else
#define UPPER_2 0, 1, 4, 5
#define LOWER_2 2, 3, 6, 7
#define UPPER_1 0, 4, 2, 6
#define LOWER_1 1, 5, 3, 7
#define SWAPPED 3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12
#endif

/* w[t] = word t of each lane's block, whose bytes are big-endian: a transpose of LANES × LANES words at a time. */
static inline void NAMED(load)(words w[16], const uint8_t *const data[LANES]) {
    for (int first = 0; first < 16; first += LANES) {
        words *rows = w + first;
        for (int i = 0; i < LANES; i++) {
            words row;
            memcpy(&row, data[i] + 4 * first, sizeof row);
            rows[i] = (words)__builtin_shufflevector((bytes)row, (bytes)row, SWAPPED);
        }
#if LANES >= 16
        EXCHANGE(8, UPPER_8, LOWER_8)
#endif
#if LANES >= 8
        EXCHANGE(4, UPPER_4, LOWER_4)
#endif
        EXCHANGE(2, UPPER_2, LOWER_2)
        EXCHANGE(1, UPPER_1, LOWER_1)
    }
}
#else
static inline void NAMED(load)(words w[16], const uint8_t *const data[LANES]) {
    for (int t = 0; t < 16; t++)
        for (int i = 0; i < LANES; i++) {
            const uint8_t *b = data[i] + 4 * t;
            w[t][i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
        }
}
#endif

#define TURN(x, n) ((x) >> (n) | (x) << (32 - (n)))

/* The constants plus the message schedule of LANES blocks that follow each other, one block in each lane. */
static inline void NAMED(schedule)(uint32_t scheduled[64][LANES], const uint8_t *from) {
    words w[64];
    const uint8_t *data[LANES];
    for (int lane = 0; lane < LANES; lane++)
        data[lane] = from + BLOCK * lane;
    NAMED(load)(w, data);
    for (int t = 16; t < 64; t++)
        w[t] = w[t - 16] + (TURN(w[t - 15], 7) ^ TURN(w[t - 15], 18) ^ w[t - 15] >> 3) + w[t - 7] +
               (TURN(w[t - 2], 17) ^ TURN(w[t - 2], 19) ^ w[t - 2] >> 10);
    for (int t = 0; t < 64; t++) {
        words sum = w[t] + K[t];
        memcpy(scheduled[t], &sum, sizeof sum);
    }
}

/* One round; the callers rename the eight variables instead of moving them. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                                                  \
    do {                                                                                                  \
        words one = h + (TURN(e, 6) ^ TURN(e, 11) ^ TURN(e, 25)) + (g ^ (e & (f ^ g))) + (w[t] + k[t]);   \
        d += one;                                                                                         \
        h = one + (TURN(a, 2) ^ TURN(a, 13) ^ TURN(a, 22)) + ((a & b) | (c & (a | b)));                   \
    } while (0)

#define EIGHT(t)                            \
    ROUND(a, b, c, d, e, f, g, h, t);       \
    ROUND(h, a, b, c, d, e, f, g, (t) + 1); \
    ROUND(g, h, a, b, c, d, e, f, (t) + 2); \
    ROUND(f, g, h, a, b, c, d, e, (t) + 3); \
    ROUND(e, f, g, h, a, b, c, d, (t) + 4); \
    ROUND(d, e, f, g, h, a, b, c, (t) + 5); \
    ROUND(c, d, e, f, g, h, a, b, (t) + 6); \
    ROUND(b, c, d, e, f, g, h, a, (t) + 7)

static void NAMED(add_blocks)(uint32_t *const states[LANES], const uint8_t *const from[LANES], size_t blocks) {
    words a, b, c, d, e, f, g, h, all[8];
    const uint8_t *data[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        data[lane] = from[lane];
        for (int i = 0; i < 8; i++)
            all[i][lane] = states[lane][i];
    }
    a = all[0], b = all[1], c = all[2], d = all[3], e = all[4], f = all[5], g = all[6], h = all[7];
    for (; blocks; blocks--) {
        words w[16], before[8] = {a, b, c, d, e, f, g, h};
        NAMED(load)(w, data);
        for (int lane = 0; lane < LANES; lane++)
            data[lane] += BLOCK;
        for (const uint32_t *k = K;; k += 16) {
            EIGHT(0);
            EIGHT(8);
            if (k == K + 48)
                break;
#pragma GCC unroll 16
            for (int t = 0; t < 16; t++) {
                words x = w[(t + 1) % 16], y = w[(t + 14) % 16];
                w[t] += (TURN(x, 7) ^ TURN(x, 18) ^ x >> 3) + w[(t + 9) % 16] + (TURN(y, 17) ^ TURN(y, 19) ^ y >> 10);
            }
        }
        a += before[0], b += before[1], c += before[2], d += before[3];
        e += before[4], f += before[5], g += before[6], h += before[7];
    }
    all[0] = a, all[1] = b, all[2] = c, all[3] = d, all[4] = e, all[5] = f, all[6] = g, all[7] = h;
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 8; i++)
            states[lane][i] = all[i][lane];
}

#undef JOINED
#undef WITH_LANES
#undef NAMED
#undef words
#undef bytes
#undef EXCHANGE
#undef UPPER_8
#undef LOWER_8
#undef UPPER_4
#undef LOWER_4
#undef UPPER_2
#undef LOWER_2
#undef UPPER_1
#undef LOWER_1
#undef SWAPPED
#undef TURN
#undef ROUND
#undef EIGHT
#undef LANES
