/* The inner loops of cnn.c. Each keeps its sums, or its kernel, in registers; the sizes are constants after
   inlining, so that the compiler unrolls the loops over registers completely. */

#include <stdint.h>

#if defined LEVEL_avx512
enum { LANES = 16, MOST_POSITIONS = 24, MOST_TAPS = 16 };
#elif defined LEVEL_avx2
enum { LANES = 8, MOST_POSITIONS = 12, MOST_TAPS = 10 };
#else
enum { LANES = 4, MOST_POSITIONS = 12, MOST_TAPS = 10 };
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef int16_t shorts __attribute__((vector_size(2 * LANES)));
typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef float unaligned_vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t unaligned_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if defined __clang__
#define UNROLL _Pragma("unroll")
#define TWICE _Pragma("unroll 2")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define TWICE _Pragma("GCC unroll 2")
#endif
/* Numbers are read again in every round of a loop, which costs nothing as part of a multiplication, and
   addresses are computed again; otherwise compilers keep both in registers, of which there are too few. */
#define FORGET_NUMBERS __asm__ volatile("" ::: "memory")
#define FORGET(pointer) __asm__("" : "+r"(pointer))

INLINE vec load(const float *at) { return *(const unaligned_vec *)at; }
INLINE void store(float *at, vec value) { *(unaligned_vec *)at = value; }
INLINE ints widen(const uint8_t *at) { /* in two steps, which compilers know better than one */
    return __builtin_convertvector(__builtin_convertvector(*(const unaligned_bytes *)at, shorts), ints);
}
INLINE int not_0(float value) { /* without a branch for NaN */
    int32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    return (bits & INT32_MAX) != 0;
}
INLINE vec choose(ints mask, vec yes, vec no) { return (vec)((mask & (ints)yes) | (~mask & (ints)no)); }

/* The length of the next of the fewest pieces with at most so many elements and nearly equal lengths. */
INLINE int piece(int64_t left, int most) {
    int parts = (int)((left + most - 1) / most);
    return parts == 1 ? (int)left : (int)left / parts + ((int)left % parts != 0);
}

/* out[p][v] = first[p][v] + the sum over rows and i of in[p * step + row * line + i] * weight[row][i][v].
   This is a convolution of one row of pixels p with channels v, or a product of matrices (one row). */
struct product {
    float *out;
    const float *first, *in, *weight; /* first may be null, for zeros */
    int64_t out_step, first_step, step, line, rows, length, weight_step;
    int packed; /* the weights of each block of channels are contiguous, as pack writes them */
};

/* A block of the output: some positions and one or two vectors. */
struct block {
    int64_t position, channel;
    int positions, vectors;
};

INLINE void product_block(const struct product *a, const struct block *b, int64_t step, int positions, int vectors) {
    int64_t line = a->line, length = a->length, weight_step = a->packed ? vectors * LANES : a->weight_step;
    const float *first = a->first + b->position * a->first_step + b->channel;
    const float *weight = a->weight + b->channel * (a->packed ? a->rows * length : 1);
    const float *in = a->in + b->position * step;
    vec sum[MOST_POSITIONS][2];
    UNROLL for (int p = 0; p < positions; p++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[p][v] = a->first ? load(first + p * a->first_step + v * LANES) : (vec){0};
    for (int64_t rows = a->rows; rows; rows--, in += line - length)
        TWICE for (const float *end = in + length; in != end; in++, weight += weight_step) {
            FORGET_NUMBERS;
            vec left = load(weight), right = vectors > 1 ? load(weight + LANES) : left;
            UNROLL for (int p = 0; p < positions; p++) {
                sum[p][0] += left * in[p * step];
                if (vectors > 1) sum[p][1] += right * in[p * step];
            }
        }
    float *out = a->out + b->position * a->out_step + b->channel;
    UNROLL for (int p = 0; p < positions; p++)
        UNROLL for (int v = 0; v < vectors; v++) store(out + p * a->out_step + v * LANES, sum[p][v]);
}

#define ONE(P) case P: product_block(a, b, step, P, 1); break;
#define TWO(P) case P: product_block(a, b, step, P, 2); break;

INLINE void product_blocks(const struct product *a, const struct block *b, int64_t step) {
    if (b->vectors == 1) switch (b->positions) {
        ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11) ONE(12)
#if defined LEVEL_avx512
        ONE(13) ONE(14) ONE(15) ONE(16) ONE(17) ONE(18) ONE(19) ONE(20) ONE(21) ONE(22) ONE(23) ONE(24)
#endif
    }
    else switch (b->positions) {
        TWO(1) TWO(2) TWO(3) TWO(4) TWO(5) TWO(6)
#if defined LEVEL_avx512
        TWO(7) TWO(8) TWO(9) TWO(10) TWO(11) TWO(12)
#endif
    }
}

/* With a constant step, the addresses of all positions need one register. */
static void product_1(const struct product *a, const struct block *b) { product_blocks(a, b, 1); }
static void product_3(const struct product *a, const struct block *b) { product_blocks(a, b, 3); }
static void product_16(const struct product *a, const struct block *b) { product_blocks(a, b, 16); }
static void product_any(const struct product *a, const struct block *b) { product_blocks(a, b, a->step); }

static void product(const struct product *a, int64_t positions, int64_t vectors) {
    void (*blocks)(const struct product *, const struct block *) =
        a->step == 1 ? product_1 : a->step == 3 ? product_3 : a->step == 16 ? product_16 : product_any;
    struct block b;
    for (b.channel = 0; b.channel < vectors * LANES; b.channel += b.vectors * LANES) {
        b.vectors = vectors - b.channel / LANES > 1 ? 2 : 1;
        for (b.position = 0; b.position < positions; b.position += b.positions) {
            int64_t left = positions - b.position;
            b.positions = b.vectors == 1 ? piece(left, MOST_POSITIONS) : piece(left, MOST_POSITIONS / 2);
            blocks(a, &b);
        }
    }
}

/* Write weights [outputs][inputs] as [pairs of vectors of outputs][inputs][outputs in the pair]. */
static void pack(float *to, const float *weight, int64_t outputs, int64_t inputs) {
    int64_t whole = (outputs + LANES - 1) / LANES * LANES;
    for (int64_t first = 0; first < whole; first += 2 * LANES) {
        int64_t wide = whole - first > LANES ? 2 * LANES : LANES, used = outputs - first < wide ? outputs - first : wide;
        for (int64_t in = 0; in < inputs; in++, to += wide)
            for (int64_t out = 0; out < used; out++) to[out] = weight[(first + out) * inputs + in];
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
            const float *at = in;
            UNROLL for (int r = 0; r < rows; r++, at += a.line) {
                FORGET(at);
                UNROLL for (int t = 0; t < taps; t++) sum[r][t] += e * at[t];
            }
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
        const float *at = b.in + b.list[i].begin;
        vec e = b.list[i].value - (vec){0};
        UNROLL for (int r = 0; r < rows; r++, at += a.line) {
            FORGET(at);
            UNROLL for (int t = 0; t < taps; t++) sum[r][t] += e * load(at + t * LANES);
        }
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
        float *at = b.in + b.list[i].begin;
        vec e = b.list[i].value - (vec){0};
        UNROLL for (int r = 0; r < rows; r++, at += a.line) {
            FORGET(at);
            UNROLL for (int t = 0; t < taps; t++) store(at + t * LANES, load(at + t * LANES) + e * kernel[r][t]);
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
                n = piece(taps - t, MOST_TAPS); \
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
