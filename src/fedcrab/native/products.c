/* Inner products of rows of float32, and sums of such rows, in float64.

   Rows are given by their places. Sums are made in an order that is the same on every processor. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define COLUMNS 1024 /* whose sums stay in the nearest cache */
#define STRIP 2048 /* numbers of a row that are multiplied at a time: fewer are read too slowly */
#define SUMS 8 /* of every eighth number each */
#define TALL 3
#define WIDE 2

#if defined LEVEL_avx512
#define LANES 8
#elif defined LEVEL_avx2
#define LANES 4
#else
#define LANES 2
#endif

typedef double lanes __attribute__((vector_size(8 * LANES)));
typedef lanes strip[STRIP / LANES];

static void convert(const float *from, size_t width, strip to) {
    double *out = (double *)to;
    for (size_t i = 0; i < width; i++)
        out[i] = from[i];
    for (size_t i = width; i % SUMS; i++)
        out[i] = 0;
}

/* Add the products of `tall` rows with `wide` others; both are constants where this is inlined. */
static inline __attribute__((always_inline)) void add_tile(const int tall, const int wide, const strip *left,
                                                           const strip *right, size_t steps, double *out,
                                                           size_t out_stride) {
    enum { PARTS = SUMS / LANES };
    lanes sums[TALL][WIDE][PARTS];
#define EACH(index, count) _Pragma("GCC unroll 8") for (int index = 0; index < (count); index++)
    EACH(i, tall) EACH(j, wide) EACH(part, PARTS) sums[i][j][part] = (lanes){0};
    for (size_t step = 0; step < steps; step += PARTS)
        EACH(part, PARTS) EACH(i, tall) EACH(j, wide)
            sums[i][j][part] += left[i][step + part] * right[j][step + part];
    EACH(i, tall) EACH(j, wide) {
        double all[SUMS];
        EACH(k, SUMS) all[k] = sums[i][j][k / LANES][k % LANES];
        double halves[4] = {all[0] + all[4], all[1] + all[5], all[2] + all[6], all[3] + all[7]};
        out[i * out_stride + j] += (halves[0] + halves[2]) + (halves[1] + halves[3]);
    }
}

static void add_rows(const int tall, const strip *left, const float *const *right, size_t rights, size_t first,
                     size_t width, double *out) {
    size_t steps = (width + SUMS - 1) / SUMS * (SUMS / LANES);
    strip converted[WIDE];
    for (size_t j = 0; j < rights; j += WIDE) {
        int wide = rights - j < WIDE ? 1 : WIDE;
        for (int k = 0; k < wide; k++)
            convert(right[j + k] + first, width, converted[k]);
        if (tall == TALL && wide == WIDE)
            add_tile(TALL, WIDE, left, converted, steps, out + j, rights);
        else
            for (int i = 0; i < tall; i++)
                for (int k = 0; k < wide; k++)
                    add_tile(1, 1, left + i, converted + k, steps, out + i * rights + j + k, rights);
    }
}

static size_t least(size_t one, size_t other) { return one < other ? one : other; }

/* out (lefts, rights) += the product of each row on the left with each on the right. */
void add_products(const float *const *left, size_t lefts, const float *const *right, size_t rights, size_t columns,
                  double *out) {
    strip converted[TALL];
    for (size_t first = 0; first < columns; first += STRIP) {
        size_t width = least(columns - first, STRIP);
        for (size_t i = 0; i < lefts; i += TALL) {
            int tall = lefts - i < TALL ? (int)(lefts - i) : TALL;
            for (int k = 0; k < tall; k++)
                convert(left[i + k] + first, width, converted[k]);
            add_rows(tall, converted, right, rights, first, width, out + i * rights);
        }
    }
}

/* out (rows) += the square of each row's length. */
void add_squares(const float *const *rows, size_t count, size_t columns, double *out) {
    strip converted;
    for (size_t row = 0; row < count; row++)
        for (size_t first = 0; first < columns; first += STRIP) {
            size_t width = least(columns - first, STRIP);
            convert(rows[row] + first, width, converted);
            add_tile(1, 1, &converted, &converted, (width + SUMS - 1) / SUMS * (SUMS / LANES), out + row, 1);
        }
}

/* Σ factor·row over some columns: one row after the other, but four in one pass over the sums. */
static void add_up(const float *const *rows, const double *factors, size_t count, size_t first, size_t width,
                   double *sum) {
    size_t row = 0;
    for (size_t i = 0; i < width; i++)
        sum[i] = 0;
    for (; row + 4 <= count; row += 4) {
        const float *a = rows[row] + first, *b = rows[row + 1] + first, *c = rows[row + 2] + first,
                    *d = rows[row + 3] + first;
        const double *f = factors + row;
        double fa = f[0], fb = f[1], fc = f[2], fd = f[3];
        for (size_t i = 0; i < width; i++)
            sum[i] = (((sum[i] + fa * (double)a[i]) + fb * (double)b[i]) + fc * (double)c[i]) + fd * (double)d[i];
    }
    for (; row < count; row++) {
        const float *from = rows[row] + first;
        double factor = factors[row];
        for (size_t i = 0; i < width; i++)
            sum[i] += factor * (double)from[i];
    }
}

void weighted_sum(const float *const *rows, const double *factors, size_t count, size_t columns, double *sum) {
    for (size_t first = 0; first < columns; first += COLUMNS)
        add_up(rows, factors, count, first, least(columns - first, COLUMNS), sum + first);
}

/* out = start + Σ factor·row, rounded once; 0 as soon as a number is not within ±most, such as NaN. */
int add_weighted(const float *start, const float *const *rows, const double *factors, size_t count, size_t columns,
                 double most, float *out) {
    double sum[COLUMNS];
    for (size_t first = 0; first < columns; first += COLUMNS) {
        size_t width = least(columns - first, COLUMNS);
        int64_t beyond = 0;
        add_up(rows, factors, count, first, width, sum);
        for (size_t i = 0; i < width; i++) {
            double value = sum[i] + start[first + i];
            beyond += !(fabs(value) <= most);
            out[first + i] = (float)value;
        }
        if (beyond)
            return 0;
    }
    return 1;
}
