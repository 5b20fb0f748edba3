/* Σ p_c·u_c in float64, one client after the other. */

#include <stddef.h>

#define COLUMNS 1024 /* whose sums stay in the nearest cache */

void weighted_sum(const float *vectors, size_t stride, const size_t *rows, const double *shares, size_t count,
                  size_t columns, double *sum) {
    for (size_t first = 0; first < columns; first += COLUMNS) {
        size_t width = columns - first < COLUMNS ? columns - first : COLUMNS;
        double *out = sum + first;
        for (size_t i = 0; i < width; i++)
            out[i] = 0;
        for (size_t row = 0; row < count; row++) {
            const float *from = vectors + rows[row] * stride + first;
            double share = shares[row];
            for (size_t i = 0; i < width; i++)
                out[i] += share * (double)from[i];
        }
    }
}
