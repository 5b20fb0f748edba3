/* The inner loops of cnn.c. Each keeps its sums, or its kernel, in registers; the sizes are constants after
   inlining, so that the compiler unrolls the loops over registers completely. */

#include <stdint.h>

#if defined LEVEL_avx512
enum { LANES = 16, MOST_POSITIONS = 12, MOST_TAPS = 16 };
#elif defined LEVEL_avx2
enum { LANES = 8, MOST_POSITIONS = 6, MOST_TAPS = 10 };
#else
enum { LANES = 4, MOST_POSITIONS = 6, MOST_TAPS = 10 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t unaligned_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

INLINE vec load(const float *at) { return *(const unaligned_vec *)at; }
INLINE void store(float *at, vec value) { *(unaligned_vec *)at = value; }
INLINE vec choose(ints mask, vec yes, vec no) { return (vec)((mask & (ints)yes) | (~mask & (ints)no)); }

/* out[p][v] = first[p][v] + the sum over rows and i of in[p * step + row * line + i] * weight[row][i][v].
   This is a convolution of one row of pixels p with channels v, or a product of matrices (one row). */
struct product {
    float *out;
    const float *first, *in, *weight;
    int64_t out_step, first_step, step, line, rows, length, weight_step;
};

INLINE void product_block(struct product a, int64_t step, int positions, int vectors) {
    vec sum[MOST_POSITIONS][2];
    UNROLL for (int p = 0; p < positions; p++)
        UNROLL for (int v = 0; v < vectors; v++) sum[p][v] = load(a.first + p * a.first_step + v * LANES);
    const float *weight = a.weight;
    for (int64_t row = 0; row < a.rows; row++)
        for (int64_t i = 0; i < a.length; i++, weight += a.weight_step) {
            const float *in = a.in + row * a.line + i;
            vec left = load(weight), right = vectors > 1 ? load(weight + LANES) : left;
            UNROLL for (int p = 0; p < positions; p++) {
                sum[p][0] += left * in[p * step];
                if (vectors > 1) sum[p][1] += right * in[p * step];
            }
        }
    UNROLL for (int p = 0; p < positions; p++)
        UNROLL for (int v = 0; v < vectors; v++) store(a.out + p * a.out_step + v * LANES, sum[p][v]);
}

#define POSITIONS(P) \
    case 2 * P: product_block(a, step, P, 1); break; \
    case 2 * P + 1: product_block(a, step, P, 2); break;

INLINE void product_blocks(struct product a, int64_t step, int positions, int vectors) {
    switch (2 * positions + vectors - 1) {
        POSITIONS(1) POSITIONS(2) POSITIONS(3) POSITIONS(4) POSITIONS(5) POSITIONS(6)
#if defined LEVEL_avx512
        POSITIONS(7) POSITIONS(8) POSITIONS(9) POSITIONS(10) POSITIONS(11) POSITIONS(12)
#endif
    }
}

/* With a constant step, the addresses of all positions need one register. */
static void product_1(struct product a, int p, int v) { product_blocks(a, 1, p, v); }
static void product_3(struct product a, int p, int v) { product_blocks(a, 3, p, v); }
static void product_16(struct product a, int p, int v) { product_blocks(a, 16, p, v); }
static void product_any(struct product a, int p, int v) { product_blocks(a, a.step, p, v); }

static void product(struct product a, int64_t positions, int64_t vectors) {
    static const float zeros[2 * LANES];
    void (*blocks)(struct product, int, int) =
        a.step == 1 ? product_1 : a.step == 3 ? product_3 : a.step == 16 ? product_16 : product_any;
    for (int64_t v = 0; v < vectors; v += 2)
        for (int64_t p = 0, n; p < positions; p += n) {
            int64_t left = positions - p, parts = (left + MOST_POSITIONS - 1) / MOST_POSITIONS;
            n = (left + parts - 1) / parts;
            struct product part = a;
            part.out += p * a.out_step + v * LANES;
            part.first = a.first ? a.first + p * a.first_step + v * LANES : zeros;
            part.first_step = a.first ? a.first_step : 0;
            part.in += p * a.step;
            part.weight += v * LANES;
            blocks(part, (int)n, vectors - v > 1 ? 2 : 1);
        }
}

/* Some taps of a kernel: kernel[row][tap], at in[row * line + tap * (1 or LANES)] of a position. */
struct taps {
    float *kernel;
    int64_t kernel_line, kernel_step, line;
};

/* kernel[row][tap] += the sum over pixels of error[pixel] * in[pixel, row, tap]: vectors of outputs. */
struct pixels {
    const float *in, *error;
    int64_t height, width, step, error_step;
};

INLINE void pixel_gradient(struct taps a, struct pixels b, int rows, int taps) {
    vec sum[5][MOST_TAPS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int t = 0; t < taps; t++) sum[r][t] = load(a.kernel + r * a.kernel_line + t * a.kernel_step);
    const float *error = b.error;
    for (int64_t y = 0; y < b.height; y++) {
        const float *in = b.in + y * a.line;
        for (int64_t x = 0; x < b.width; x++, in += b.step, error += b.error_step) {
            vec e = load(error);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int t = 0; t < taps; t++) sum[r][t] += e * in[r * a.line + t];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int t = 0; t < taps; t++) store(a.kernel + r * a.kernel_line + t * a.kernel_step, sum[r][t]);
}

/* The errors of one output channel that are not 0, and where each one's window begins in the input. */
struct error {
    int32_t begin;
    float value;
};

struct errors {
    const struct error *list;
    int64_t count;
    float *in;
};

/* kernel[row][tap] += the sum over errors of error * in[begin, row, tap]: vectors of inputs. */
INLINE void error_gradient(struct taps a, struct errors b, int rows, int taps) {
    vec sum[5][MOST_TAPS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int t = 0; t < taps; t++) sum[r][t] = load(a.kernel + r * a.kernel_line + t * LANES);
    for (int64_t i = 0; i < b.count; i++) {
        const float *in = b.in + b.list[i].begin;
        vec e = b.list[i].value - (vec){0};
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int t = 0; t < taps; t++) sum[r][t] += e * load(in + r * a.line + t * LANES);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int t = 0; t < taps; t++) store(a.kernel + r * a.kernel_line + t * LANES, sum[r][t]);
}

/* in[begin, row, tap] += error * kernel[row][tap]: the gradient of the input. */
INLINE void error_scatter(struct taps a, struct errors b, int rows, int taps) {
    vec kernel[5][MOST_TAPS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int t = 0; t < taps; t++) kernel[r][t] = load(a.kernel + r * a.kernel_line + t * LANES);
    for (int64_t i = 0; i < b.count; i++) {
        float *in = b.in + b.list[i].begin;
        vec e = b.list[i].value - (vec){0};
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int t = 0; t < taps; t++) {
                float *at = in + r * a.line + t * LANES;
                store(at, load(at) + e * kernel[r][t]);
            }
    }
}

#define TAPS(T) case T: RUN(a, b, 1, T); break;
#if defined LEVEL_avx512
#define WHOLE_KERNELS(rows, taps) \
    if (rows == 5 && taps == 5) { RUN(a, b, 5, 5); return; } \
    if (rows == 3 && taps == 3) { RUN(a, b, 3, 3); return; }
#define MORE_TAPS TAPS(11) TAPS(12) TAPS(13) TAPS(14) TAPS(15) TAPS(16)
#else
#define WHOLE_KERNELS(rows, taps)
#define MORE_TAPS
#endif

/* A function that covers a kernel of any size: at once if it fits in the registers, otherwise row by row in
   pieces of nearly equal length. */
#define WHOLE_KERNEL(name, other) \
    static void name(struct taps a, struct other b, int64_t rows, int64_t taps) { \
        WHOLE_KERNELS(rows, taps) \
        float *kernel = a.kernel, *line = (float *)b.in; \
        for (int64_t row = 0; row < rows; row++) \
            for (int64_t t = 0, n; t < taps; t += n) { \
                int64_t left = taps - t, parts = (left + MOST_TAPS - 1) / MOST_TAPS; \
                n = (left + parts - 1) / parts; \
                a.kernel = kernel + row * a.kernel_line + t * a.kernel_step; \
                b.in = line + row * a.line + t * IN_STEP; \
                switch (n) { \
                    TAPS(1) TAPS(2) TAPS(3) TAPS(4) TAPS(5) TAPS(6) TAPS(7) TAPS(8) TAPS(9) TAPS(10) MORE_TAPS \
                } \
            } \
    }

#define IN_STEP 1
#define RUN pixel_gradient
WHOLE_KERNEL(gradient_of_pixels, pixels)
#undef RUN
#undef IN_STEP
#define IN_STEP LANES
#define RUN error_gradient
WHOLE_KERNEL(gradient_of_errors, errors)
#undef RUN
#define RUN error_scatter
WHOLE_KERNEL(scatter_errors, errors)
