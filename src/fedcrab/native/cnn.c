/* Training of small CNNs: convolutions of stride 1, each with or without 2 x 2 pooling and ReLU, then linear
   layers with ReLU between, cross-entropy and SGD, one client at a time on one thread.

   Images are (height, width, channels), with the channels innermost and filled up with zeros to whole vectors;
   only those of the first layer are as they are. Pooling gives a gradient to one pixel of four and ReLU to few
   of these, so the backward pass of a convolution lists the gradients that are not 0 and uses no others. That
   is right only for finite numbers, so training stops at the first other one, and the caller trains the client
   in another way. */

#include <math.h>
#include <string.h>

#include "cnn_blocks.h"

enum { MOST_LAYERS = 16, GROUP_FLOATS = 5120 }; /* inputs that fit in a first-level cache */

/* A convolution; a linear layer is one on images of one pixel. Sizes of images include the zeros around them. */
struct layer {
    int64_t height, width, channels, rows, columns, outputs, pooled, relu, above, beside;
    int64_t weight, bias, has_bias; /* positions in the parameters */
};

struct network {
    struct layer layers[MOST_LAYERS];
    int64_t count, convolutions, parameters, chunk, group;
    float *weights, *gradients;
    float *input[MOST_LAYERS + 1]; /* of each layer for all examples in a chunk; the last are the logits */
    float *error[MOST_LAYERS + 1]; /* the gradients of the inputs: of a chunk, in convolutions of a group */
    float *forward[MOST_LAYERS];   /* weights with the outputs innermost, after the first layer packed */
    uint8_t *largest[MOST_LAYERS]; /* which of four pixels is the maximum */
    float *rows, *turned, *masked;
    struct error *list;
    int64_t *ends;
};

#define ALONE static __attribute__((noinline)) /* so that each has the registers to itself */

static int64_t whole(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
static int64_t largest_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t out_height(const struct layer *l) { return l->height - l->rows + 1; }
static int64_t out_width(const struct layer *l) { return l->width - l->columns + 1; }
static int64_t cell_height(const struct layer *l) { return out_height(l) >> l->pooled; }
static int64_t cell_width(const struct layer *l) { return out_width(l) >> l->pooled; }
static int64_t in_size(const struct layer *l) { return whole(l->height * l->width * l->channels); }
static int64_t out_size(const struct layer *l) { return cell_height(l) * cell_width(l) * whole(l->outputs); }

struct space {
    float *memory;
    int64_t used;
};

static float *take(struct space *s, int64_t floats) {
    int64_t begin = s->used;
    s->used += (floats + 15) / 16 * 16;
    return s->memory ? s->memory + begin : 0;
}

/* Divide the workspace; returns how many floats that takes. */
static int64_t place(struct network *n, float *memory) {
    struct space s = {memory, 0};
    int64_t rows = 1, cells = 1, linear = 1, outputs = 1;
    const struct layer *first = &n->layers[0];
    int64_t pixels = out_height(first) * out_width(first) * whole(first->outputs);
    n->group = n->chunk;
    for (int64_t i = 1; i < n->convolutions; i++) {
        int64_t fits = largest_of(1, GROUP_FLOATS / in_size(&n->layers[i]));
        n->group = fits < n->group ? fits : n->group;
    }
    n->gradients = take(&s, n->parameters);
    for (int64_t i = 0; i <= n->count; i++) {
        const struct layer *l = &n->layers[i < n->count ? i : i - 1];
        int64_t size = i < n->count ? in_size(l) : whole(l->outputs), taps = l->rows * l->columns * l->channels;
        n->input[i] = take(&s, n->chunk * size);
        n->error[i] = take(&s, i ? (i < n->convolutions ? n->group : n->chunk) * size : 0);
        if (i == n->count) break;
        n->forward[i] = take(&s, i ? taps * whole(l->outputs) : 0);
        n->largest[i] = (uint8_t *)take(&s, l->pooled ? n->chunk * out_size(l) / 4 : 0);
        outputs = largest_of(outputs, l->outputs);
        if (i >= n->convolutions) linear = largest_of(linear, n->chunk * l->outputs);
        else rows = largest_of(rows, 2 * out_width(l) * whole(l->outputs));
        if (i && i < n->convolutions) cells = largest_of(cells, n->group * out_size(l));
    }
    n->rows = take(&s, largest_of(rows, out_size(first)));
    n->turned = take(&s, linear);
    n->masked = take(&s, largest_of(pixels, cells));
    n->list = (struct error *)take(&s, 2 * cells);
    n->ends = (int64_t *)take(&s, 2 * outputs);
    return s.used;
}

/* The outputs of a layer for one example, or their gradients, in the input of the next layer, which may have
   zeros around it; and the distance between lines. */
static float *outputs_of(const struct network *n, float *const *arrays, int64_t layer, int64_t example, int64_t *line) {
    const struct layer *l = &n->layers[layer], *next = l + 1;
    if (layer + 1 >= n->convolutions) {
        *line = cell_width(l) * whole(l->outputs);
        return arrays[layer + 1] + example * out_size(l);
    }
    *line = next->width * next->channels;
    return arrays[layer + 1] + example * in_size(next) + (next->above * next->width + next->beside) * next->channels;
}

ALONE void pack_weights(struct network *n) {
    for (int64_t i = 1; i < n->count; i++) {
        const struct layer *l = &n->layers[i];
        pack(n->forward[i], n->weights + l->weight, l->outputs, l->rows * l->columns * l->channels);
    }
    n->forward[0] = n->weights + n->layers[0].weight;
}

/* ReLU of the maximum of 2 x 2 pixels, the first among equals; returns a vector of 0, or NaN if any is not finite. */
ALONE vec pool_rows(const struct layer *l, const float *row, float *out, uint8_t *largest) {
    int64_t step = whole(l->outputs), below = 2 * cell_width(l) * step;
    vec check = {0};
    for (int64_t x = 0; x < cell_width(l); x++, row += 2 * step)
        for (int64_t v = 0; v < step; v += LANES, out += LANES, largest += LANES) {
            vec most = load(row + v);
            vec others[3] = {load(row + v + step), load(row + v + below), load(row + v + below + step)};
            ints place = {0};
            check += (most + others[0] + (others[1] + others[2])) * 0.0f;
            for (int i = 0; i < 3; i++) {
                ints more = others[i] > most;
                most = choose(more, others[i], most);
                place = (more & (i + 1)) | (~more & place);
            }
            store(out, l->relu ? choose(most > 0.0f, most, (vec){0}) : most);
            *(unaligned_bytes *)largest = __builtin_convertvector(place, bytes);
        }
    return check;
}

static vec relu_row(const struct layer *l, const float *row, float *out) {
    vec check = {0};
    for (int64_t i = 0; i < cell_width(l) * whole(l->outputs); i += LANES) {
        vec value = load(row + i);
        check += value * 0.0f;
        store(out + i, l->relu ? choose(value > 0.0f, value, (vec){0}) : value);
    }
    return check;
}

/* The outputs of a convolution for one example, one or two rows of pixels at a time. */
ALONE vec convolve(struct network *n, int64_t layer, int64_t example) {
    const struct layer *l = &n->layers[layer];
    int64_t step = whole(l->outputs), width = cell_width(l) << l->pooled, out_line;
    struct product a = {
        .first = n->weights + l->bias, .in = n->input[layer] + example * in_size(l), .weight = n->forward[layer],
        .out_step = step, .step = l->channels, .line = l->width * l->channels, .rows = l->rows,
        .length = l->columns * l->channels, .weight_step = step, .packed = layer > 0,
    };
    float *out = outputs_of(n, n->input, layer, example, &out_line);
    uint8_t *largest = n->largest[layer] + example * out_size(l);
    vec check = {0};
    for (int64_t y = 0; y < cell_height(l); y++, out += out_line, largest += cell_width(l) * step) {
        for (int64_t i = 0; i <= l->pooled; i++, a.in += a.line) {
            a.out = n->rows + i * width * step;
            product(&a, width, step / LANES);
        }
        check += l->pooled ? pool_rows(l, n->rows, out, largest) : relu_row(l, n->rows, out);
    }
    return check;
}

/* The gradients of one example's cells before bias and ReLU; adds those of the bias. */
ALONE void mask_errors(struct network *n, int64_t layer, int64_t example, const float *error, int64_t error_line,
                        float *masked) {
    const struct layer *l = &n->layers[layer];
    int64_t step = whole(l->outputs), line;
    const float *out = outputs_of(n, n->input, layer, example, &line);
    for (int64_t v = 0; v < step; v += LANES) {
        float *bias = n->gradients + l->bias + v, *to = masked + v;
        vec sum = load(bias);
        for (int64_t y = 0; y < cell_height(l); y++)
            for (int64_t x = 0; x < cell_width(l); x++, to += step) {
                vec e = load(error + y * error_line + x * step + v);
                if (l->relu) e = choose(load(out + y * line + x * step + v) > 0.0f, e, (vec){0});
                sum += e;
                store(to, e);
            }
        if (l->has_bias) store(bias, sum);
    }
}

/* The gradient of the first layer's kernel from one example: gradients of cells become gradients of pixels. */
ALONE void first_backward(struct network *n, int64_t example, const float *error, int64_t error_line) {
    const struct layer *l = &n->layers[0];
    int64_t step = whole(l->outputs), width = cell_width(l) << l->pooled;
    float *cell = n->rows, *pixel = n->masked;
    const uint8_t *largest = n->largest[0] + example * out_size(l);
    mask_errors(n, 0, example, error, error_line, l->pooled ? cell : pixel);
    for (int64_t y = 0; l->pooled && y < cell_height(l); y++)
        for (int64_t x = 0; x < cell_width(l); x++)
            for (int64_t v = 0; v < step; v += LANES, cell += LANES, largest += LANES) {
                vec e = load(cell);
                ints place = widen(largest);
                float *corner = pixel + (2 * y * width + 2 * x) * step + v;
                for (int k = 0; k < 4; k++)
                    store(corner + ((k >> 1) * width + (k & 1)) * step, choose(place == k, e, (vec){0}));
            }
    int64_t length = l->columns * l->channels;
    for (int64_t v = 0; v < step; v += LANES)
        gradient_of_pixels(
            (struct taps){n->gradients + l->weight + v, length * step, step, l->width * l->channels},
            (struct pixels){n->input[0] + example * in_size(l), pixel + v, cell_height(l) << l->pooled,
                            width, l->channels, step},
            l->rows, length);
}

/* List the gradients of a group that are not 0, one output channel after the other. */
ALONE void list_errors(struct network *n, int64_t layer, int64_t begin, int64_t count) {
    const struct layer *l = &n->layers[layer];
    int64_t step = whole(l->outputs), size = out_size(l), width = cell_width(l), listed = 0;
    int64_t right = l->channels, below = l->width * l->channels;
    int32_t corner[4] = {0, (int32_t)right, (int32_t)below, (int32_t)(below + right)};
    for (int64_t output = 0; output < l->outputs; n->ends[output++] = listed)
        for (int64_t example = 0; example < count; example++) {
            const float *error = n->masked + example * size + output;
            const uint8_t *largest = n->largest[layer] + (begin + example) * size + output;
            for (int64_t y = 0; y < cell_height(l); y++) {
                int64_t at = example * in_size(l) + (y << l->pooled) * below;
                for (int64_t x = 0; x < width; x++, error += step, largest += step, at += right << l->pooled) {
                    n->list[listed] = (struct error){(int32_t)at + (l->pooled ? corner[*largest] : 0), *error};
                    listed += not_0(*error);
                }
            }
        }
}

/* The gradients of a later convolution's kernel and input, from a group of examples. */
ALONE void backward(struct network *n, int64_t layer, int64_t begin, int64_t count) {
    const struct layer *l = &n->layers[layer];
    int64_t length = l->columns * l->channels, size = l->rows * length;
    list_errors(n, layer, begin, count);
    float *in = n->input[layer] + begin * in_size(l), *error = n->error[layer];
    memset(error, 0, 4 * count * in_size(l));
    for (int pass = 0; pass < 2; pass++)
        for (int64_t output = 0; output < l->outputs; output++) {
            int64_t from = output ? n->ends[output - 1] : 0;
            struct errors errors = {n->list + from, n->ends[output] - from, pass ? error : in};
            float *kernel = (pass ? n->weights : n->gradients) + l->weight + output * size;
            (pass ? scatter_errors : gradient_of_errors)(
                (struct taps){kernel, length, LANES, l->width * l->channels}, errors, l->rows, length / LANES);
        }
}

static void convolutions_backward(struct network *n, int64_t begin, int64_t count) {
    for (int64_t layer = n->convolutions - 1; layer >= 0; layer--)
        for (int64_t i = 0, line; i < count; i++) {
            int64_t place = layer + 1 < n->convolutions ? i : begin + i;
            const float *error = outputs_of(n, n->error, layer, place, &line);
            if (!layer) first_backward(n, begin + i, error, line);
            else mask_errors(n, layer, begin + i, error, line, n->masked + i * out_size(&n->layers[layer]));
            if (layer && i == count - 1) backward(n, layer, begin, count);
        }
}

ALONE void linear_forward(struct network *n, int64_t layer, int64_t count) {
    const struct layer *l = &n->layers[layer];
    int64_t step = whole(l->outputs);
    product(&(struct product){.out = n->input[layer + 1], .out_step = step, .first = n->weights + l->bias,
                .in = n->input[layer], .step = l->channels, .rows = 1, .length = l->channels,
                .weight = n->forward[layer], .packed = 1},
            count, step / LANES);
    float *out = n->input[layer + 1];
    for (int64_t i = 0; l->relu && i < count * step; i++) out[i] = out[i] <= 0 ? 0 : out[i];
}

ALONE void linear_backward(struct network *n, int64_t layer, int64_t count) {
    const struct layer *l = &n->layers[layer];
    int64_t step = whole(l->outputs);
    float *error = n->error[layer + 1], *out = n->input[layer + 1], *bias = n->gradients + l->bias;
    for (int64_t i = 0; l->relu && i < count * step; i++) error[i] = out[i] <= 0 ? 0 : error[i];
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < l->outputs; k++) {
            n->turned[k * count + i] = error[i * step + k];
            bias[k] += l->has_bias ? error[i * step + k] : 0;
        }
    float *gradient = n->gradients + l->weight;
    product(&(struct product){.out = gradient, .out_step = l->channels, .first = gradient, .first_step = l->channels,
                .in = n->turned, .step = count, .rows = 1, .length = count, .weight = n->input[layer],
                .weight_step = l->channels},
            l->outputs, l->channels / LANES);
    product(&(struct product){.out = n->error[layer], .out_step = l->channels, .in = error, .step = step, .rows = 1,
                .length = l->outputs, .weight = n->weights + l->weight, .weight_step = l->channels},
            count, l->channels / LANES);
}

/* The gradients of the logits: (softmax - 1 at the label) / batch; returns 0, or NaN if any is not finite. */
ALONE float cross_entropy(struct network *n, const int64_t *y, const int64_t *order, int64_t count, int64_t batch) {
    int64_t classes = n->layers[n->count - 1].outputs, step = whole(classes);
    float check = 0;
    memset(n->error[n->count], 0, 4 * count * step);
    for (int64_t i = 0; i < count; i++) {
        const float *logits = n->input[n->count] + i * step;
        float *error = n->error[n->count] + i * step, most = logits[0], sum = 0;
        for (int64_t k = 1; k < classes; k++) most = logits[k] > most ? logits[k] : most;
        for (int64_t k = 0; k < classes; k++) {
            check += logits[k] * 0;
            sum += error[k] = expf(logits[k] - most);
        }
        for (int64_t k = 0; k < classes; k++) error[k] = (error[k] / sum - (k == y[order[i]])) / (float)batch;
    }
    return check;
}

/* Add the gradients of a chunk of a batch; returns 0, or NaN. */
static float chunk_gradients(struct network *n, const float *x, const int64_t *y, const int64_t *order, int64_t count,
                             int64_t batch) {
    const struct layer *first = &n->layers[0];
    int64_t height = first->height - 2 * first->above, width = first->width - 2 * first->beside;
    int64_t channels = first->channels, line = first->width * channels;
    vec check = {0};
    for (int64_t i = 0; i < count; i++) {
        float *to = n->input[0] + i * in_size(first) + first->above * line + first->beside * channels;
        const float *image = x + order[i] * channels * height * width;
        for (int64_t row = 0; channels == 1 && row < height; row++)
            memcpy(to + row * line, image + row * width, 4 * width);
        for (int64_t c = 0; channels > 1 && c < channels; c++)
            for (int64_t row = 0; row < height; row++)
                for (int64_t k = 0; k < width; k++) to[row * line + k * channels + c] = *image++;
        for (int64_t layer = 0; layer < n->convolutions; layer++) check += convolve(n, layer, i);
    }
    for (int64_t layer = n->convolutions; layer < n->count; layer++) linear_forward(n, layer, count);
    float sum = cross_entropy(n, y, order, count, batch);
    for (int64_t layer = n->count - 1; layer >= n->convolutions; layer--) linear_backward(n, layer, count);
    for (int64_t i = 0; i < count; i += n->group)
        convolutions_backward(n, i, count - i < n->group ? count - i : n->group);
    for (int i = 0; i < LANES; i++) sum += check[i];
    return sum;
}

/* w <- w - rate * v, with v <- momentum * v + gradient + decay * w; returns 0, or NaN if any is not finite. */
ALONE float descend(struct network *n, float *velocities, float rate, float momentum, float decay) {
    float *w = n->weights, check[LANES] = {0}, sum = 0;
    for (int64_t i = 0; i < n->parameters; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float step = n->gradients[i + k] + decay * w[i + k];
            if (velocities) step = velocities[i + k] = momentum * velocities[i + k] + step;
            w[i + k] -= rate * step;
            check[k] += w[i + k] * 0;
        }
    for (int k = 0; k < LANES; k++) sum += check[k];
    return sum;
}

int64_t cnn_lanes(void) { return LANES; }

/* How many floats the workspace must have, for chunks of this many examples. */
int64_t cnn_workspace(const struct layer *layers, int64_t count, int64_t convolutions, int64_t parameters,
                      int64_t chunk) {
    struct network n = {.count = count, .convolutions = convolutions, .parameters = parameters, .chunk = chunk};
    memcpy(n.layers, layers, count * sizeof *layers);
    return place(&n, 0);
}

/* Train one epoch in place. Returns 0, or 1 as soon as a number is not finite or a label is not a class. The
   workspace must be 0 before the first call, and velocities before the first epoch. */
int cnn_train(const struct layer *layers, int64_t count, int64_t convolutions, int64_t parameters, int64_t chunk,
              float *weights, float *velocities, float *workspace, const float *x, const int64_t *y,
              const int64_t *order, int64_t examples, int64_t batch, float rate, float momentum, float decay) {
    struct network n = {
        .count = count, .convolutions = convolutions, .parameters = parameters, .chunk = chunk, .weights = weights};
    memcpy(n.layers, layers, count * sizeof *layers);
    place(&n, workspace);
    for (int64_t i = 0; i < examples; i++)
        if (y[i] < 0 || y[i] >= layers[count - 1].outputs) return 1;
    for (int64_t begin = 0, size; begin < examples; begin += size) {
        size = examples - begin < batch ? examples - begin : batch;
        float check = 0;
        memset(n.gradients, 0, 4 * parameters);
        pack_weights(&n);
        for (int64_t i = 0; i < size; i += chunk)
            check += chunk_gradients(&n, x, y, order + begin + i, size - i < chunk ? size - i : chunk, size);
        check += descend(&n, velocities, rate, momentum, decay);
        if (check != 0) return 1;
    }
    return 0;
}
