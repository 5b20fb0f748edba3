/* Steps of sha256.c by the processor's SHA instructions, for one message or for two.

   A round needs the result of the one before, which takes four cycles, but a new one can start every two: two
   messages at once take hardly longer than one. */

#include <cpuid.h>
#include <immintrin.h>

#define WAYS 2
#define EACH_WAY _Pragma("GCC unroll 2") for (int i = 0; i < ways; i++)
#define SHA_INSTRUCTIONS __attribute__((target("sha,sse4.1")))

static int has_instructions(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
}

/* Words t to t + 3 of the schedule from the sixteen before them; w has these, four in each, from word t - 16 on. */
SHA_INSTRUCTIONS static inline __m128i scheduled(const __m128i w[4], int t) {
    __m128i first = w[t % 4], second = w[(t + 1) % 4], third = w[(t + 2) % 4], last = w[(t + 3) % 4];
    __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(first, second), _mm_alignr_epi8(last, third, 4));
    return _mm_sha256msg2_epu32(sum, last);
}

/* Add blocks to one or two states; `ways` is a constant where this is inlined. */
SHA_INSTRUCTIONS static inline __attribute__((always_inline)) void add_with_instructions(
    const int ways, uint32_t *const *states, const uint8_t *const *from, size_t blocks) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203); /* the bytes of each word */
    __m128i abef[WAYS], cdgh[WAYS]; /* the instructions want the eight words in this order */
    const uint8_t *data[WAYS];
    EACH_WAY {
        __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)states[i]), 0xb1);
        __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)states[i] + 1), 0x1b);
        abef[i] = _mm_alignr_epi8(cdab, efgh, 8);
        cdgh[i] = _mm_blend_epi16(efgh, cdab, 0xf0);
        data[i] = from[i];
    }
    for (; blocks; blocks--) {
        __m128i w[WAYS][4], before[WAYS][2];
        EACH_WAY before[i][0] = abef[i], before[i][1] = cdgh[i];
#pragma GCC unroll 16
        for (int t = 0; t < 16; t++) /* four rounds each */
            EACH_WAY {
                __m128i now = t < 4 ? _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data[i] + t), swap)
                                    : scheduled(w[i], t);
                __m128i sum = _mm_add_epi32(now, _mm_loadu_si128((const __m128i *)(K + 4 * t)));
                w[i][t % 4] = now;
                cdgh[i] = _mm_sha256rnds2_epu32(cdgh[i], abef[i], sum);
                abef[i] = _mm_sha256rnds2_epu32(abef[i], cdgh[i], _mm_shuffle_epi32(sum, 0x0e));
            }
        EACH_WAY {
            abef[i] = _mm_add_epi32(abef[i], before[i][0]);
            cdgh[i] = _mm_add_epi32(cdgh[i], before[i][1]);
            data[i] += BLOCK;
        }
    }
    EACH_WAY {
        __m128i feba = _mm_shuffle_epi32(abef[i], 0x1b), dchg = _mm_shuffle_epi32(cdgh[i], 0xb1);
        _mm_storeu_si128((__m128i *)states[i], _mm_blend_epi16(feba, dchg, 0xf0));
        _mm_storeu_si128((__m128i *)states[i] + 1, _mm_alignr_epi8(dchg, feba, 8));
    }
}

SHA_INSTRUCTIONS static void add_to_one(uint32_t *const *states, const uint8_t *const *data, size_t blocks) {
    add_with_instructions(1, states, data, blocks);
}

SHA_INSTRUCTIONS static void add_to_two(uint32_t *const *states, const uint8_t *const *data, size_t blocks) {
    add_with_instructions(2, states, data, blocks);
}
