/* K += X·Xᵀ in float64 for a few rows of float32 and of float64.

   Some columns of all rows are converted to float64 in a scratch that fits the cache; then squares of TILE × TILE
   pairs are summed in registers, LANES columns at a time. The order of the sums depends only on the columns, so
   equal rows have equal products. */

#include <stddef.h>
#include <string.h>

#if defined LEVEL_avx512
#define LANES 8
#define TILE 4
#elif defined LEVEL_avx2
#define LANES 4
#define TILE 3
#else
#define LANES 2
#define TILE 3
#endif

#define COLUMNS 128
#define MOST 66 /* rows: a multiple of both tiles would be 72; the groups below are rounded up */
#define GROUPS ((MOST + TILE - 1) / TILE)

#define EACH_PAIR                                                  \
    _Pragma("GCC unroll 4") for (int i = 0; i < TILE; i++)         \
    _Pragma("GCC unroll 4") for (int j = 0; j < TILE; j++)

typedef double lanes __attribute__((vector_size(8 * LANES)));

struct scratch {
    lanes rows[GROUPS * TILE][COLUMNS / LANES];
    lanes sums[GROUPS * (GROUPS + 1) / 2][TILE][TILE];
};

static void add_tile(lanes left[TILE][COLUMNS / LANES], lanes right[TILE][COLUMNS / LANES], size_t steps,
                     lanes sums[TILE][TILE]) {
    lanes now[TILE][TILE];
    EACH_PAIR now[i][j] = sums[i][j];
    for (size_t step = 0; step < steps; step++)
        EACH_PAIR now[i][j] += left[i][step] * right[j][step];
    EACH_PAIR sums[i][j] = now[i][j];
}

int gram_most_rows(void) { return MOST; }

size_t gram_scratch_size(void) { return sizeof(struct scratch) + sizeof(lanes); }

/* ``gram`` has one row and one column per point, the float32 rows first; only its lower triangle is changed. */
void gram_add(const float *vectors, size_t count, size_t stride, const double *more, size_t more_count,
              size_t more_stride, size_t columns, double *gram, char *memory) {
    struct scratch *s = (struct scratch *)(memory + (sizeof(lanes) - (size_t)memory % sizeof(lanes)));
    size_t points = count + more_count, groups = (points + TILE - 1) / TILE;
    memset(s, 0, sizeof *s);
    for (size_t first = 0; first < columns; first += COLUMNS) {
        size_t width = columns - first < COLUMNS ? columns - first : COLUMNS;
        size_t steps = (width + LANES - 1) / LANES;
        for (size_t point = 0; point < points; point++) {
            double *row = (double *)s->rows[point];
            if (point < count)
                for (size_t i = 0; i < width; i++)
                    row[i] = vectors[point * stride + first + i];
            else
                memcpy(row, more + (point - count) * more_stride + first, sizeof(double) * width);
            memset(row + width, 0, sizeof(double) * (LANES * steps - width));
        }
        for (size_t i = 0, tile = 0; i < groups; i++)
            for (size_t j = 0; j <= i; j++, tile++)
                add_tile(s->rows + TILE * i, s->rows + TILE * j, steps, s->sums[tile]);
    }
    for (size_t i = 0; i < points; i++)
        for (size_t j = 0; j <= i; j++) {
            size_t left = i / TILE, right = j / TILE;
            lanes sum = s->sums[left * (left + 1) / 2 + right][i % TILE][j % TILE];
            double total = 0;
            for (int lane = 0; lane < LANES; lane++)
                total += sum[lane];
            gram[i * points + j] += total;
        }
}
