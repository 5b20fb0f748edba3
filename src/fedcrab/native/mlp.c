/* Trains one client's MLP by SGD, in a whole round: linear layers with ReLU between, mean cross-entropy.

   A weight is kept with its outputs innermost, (inputs, outputs), so that an example's input is multiplied by
   vectors of outputs. The first layer has three forms:

   dense    every input
   sparse   only the inputs of an example that are not 0; in MNIST four of five are
   dual     z = before - K d with the products K of the examples: see engines/mlp_compiled.py */

#include "vectors.h"

typedef struct {
    int64_t layers, examples, epochs, batch;
    const int64_t *sizes;    /* inputs of the first layer, outputs of each */
    const uint8_t *biased;   /* of each layer */
    const float *start;      /* the model: weight (outputs, inputs) and bias of each layer */
    const float *x;          /* (examples, inputs) */
    const int64_t *begins;   /* where the inputs of each example begin in columns and values; NULL: dense */
    const uint16_t *columns;
    const float *values;
    const float *kernel;     /* K (examples, examples), 1 added if there is a bias; NULL: not dual */
    const int64_t *labels;
    const int64_t *orders;   /* (epochs, examples) */
    float *update;           /* result: local minus start */
    float rate;
} Training;

typedef struct {
    int64_t inputs, outputs, width; /* width: outputs padded to whole vectors */
    int64_t stride;                 /* of a batch's rows; one line more, as rows a power of 2 apart compete for few places of a cache */
    float *weight, *bias, *turned;  /* turned: the weight as (outputs, inputs padded), for errors */
    float *output, *error;          /* of a batch */
} Layer;

/* Where the parts of each layer are in the flat model. */
static int64_t place_of(const Training *t, int64_t layer) {
    int64_t place = 0;
    for (int64_t i = 0; i < layer; i++) place += t->sizes[i + 1] * (t->sizes[i] + t->biased[i]);
    return place;
}

static void fill_rows(float *rows, int64_t stride, const float *row, int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; i++) memcpy(rows + i * stride, row, width * sizeof(float));
}

/* sum += alpha (the sum of rows) */
static void add_rows_to(float *sum, const float *rows, int64_t stride, int64_t count, int64_t width, float alpha) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < width; j++) sum[j] += alpha * rows[i * stride + j];
}

/* An input of a batch that is not 0. */
typedef struct {
    int32_t row; /* its example's, in the batch */
    float value;
} Entry;

/* A batch of examples: as they are, or their inputs that are not 0, by input. */
typedef struct {
    float *dense;
    Entry *entries;
    int32_t *ends;       /* in entries, of each input */
    int64_t *from, *to;  /* in columns and values, of each example: the span of inputs that is used now */
} Batch;

/* Sort the batch's inputs that are not 0 by input: then a row of the weight is used once per batch. */
static void gather_sparse(const Training *t, const int64_t *order, int64_t rows, Batch *batch) {
    const int64_t inputs = t->sizes[0];
    int32_t *ends = batch->ends, sum = 0;
    memset(ends, 0, inputs * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = t->begins[order[i]]; k < t->begins[order[i] + 1]; k++) ends[t->columns[k]]++;
    for (int64_t j = 0; j < inputs; j++) {
        int32_t count = ends[j];
        ends[j] = sum, sum += count;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = t->begins[order[i]]; k < t->begins[order[i] + 1]; k++)
            batch->entries[ends[t->columns[k]]++] = (Entry){(int32_t)i, t->values[k]};
}

enum { BAND = 8, SPAN = 128 }; /* vectors of an example's output in registers; inputs whose weights stay cached */

/* z += x weight with the inputs that the batch uses now, `wide` vectors of each row */
INLINE void forward_span(const int wide, const Training *t, const Batch *batch, int64_t rows, float *z, int64_t ldz,
                         const float *weight, int64_t width) {
    for (int64_t i = 0; i < rows; i++, z += ldz) {
        if (batch->from[i] == batch->to[i]) continue;
        vec sum[BAND];
        for (int j = 0; j < wide; j++) sum[j] = ((const vec *)z)[j];
        for (int64_t k = batch->from[i]; k < batch->to[i]; k++) {
            const vec *row = (const vec *)(weight + t->columns[k] * width);
            for (int j = 0; j < wide; j++) sum[j] += t->values[k] * row[j];
        }
        for (int j = 0; j < wide; j++) ((vec *)z)[j] = sum[j];
    }
}

/* z += x weight, a span of inputs after the other */
static void forward_sparse(const Training *t, const Layer *l, const int64_t *order, int64_t rows, float *z,
                           Batch *batch) {
    for (int64_t i = 0; i < rows; i++) batch->to[i] = t->begins[order[i]];
    for (int64_t end = SPAN; end < l->inputs + SPAN; end += SPAN) {
        for (int64_t i = 0; i < rows; i++) {
            int64_t k = batch->from[i] = batch->to[i], last = t->begins[order[i] + 1];
            while (k < last && t->columns[k] < end) k++;
            batch->to[i] = k;
        }
        int64_t j = 0;
        for (; j + BAND * LANES <= l->width; j += BAND * LANES)
            forward_span(BAND, t, batch, rows, z + j, l->stride, l->weight + j, l->width);
        for (; j < l->width; j += LANES)
            forward_span(1, t, batch, rows, z + j, l->stride, l->weight + j, l->width);
    }
}

enum { STRIPE = 8 }; /* vectors of errors that are summed in registers */

/* weight += alpha x^T error, `wide` vectors of each row */
INLINE void descend_sparse(const int wide, float *weight, int64_t width, const float *error, int64_t lde,
                           const Batch *batch, int64_t inputs, float alpha) {
    const Entry *entry = batch->entries;
    for (int64_t i = 0; i < inputs; i++, weight += width) {
        const Entry *end = batch->entries + batch->ends[i];
        if (entry == end) continue;
        vec sum[STRIPE];
        for (int j = 0; j < wide; j++) sum[j] = (vec){0};
        for (; entry < end; entry++) {
            const vec *own = (const vec *)(error + entry->row * lde);
            for (int j = 0; j < wide; j++) sum[j] += entry->value * own[j];
        }
        for (int j = 0; j < wide; j++) ((vec *)weight)[j] += alpha * sum[j];
    }
}

/* z = bias + the first layer of these examples; the batch keeps them */
static void first_forward(const Training *t, const Layer *l, const int64_t *order, int64_t rows, float *z,
                          Batch *batch) {
    fill_rows(z, l->stride, l->bias, rows, l->width);
    if (!t->begins) {
        for (int64_t i = 0; i < rows; i++)
            memcpy(batch->dense + i * l->inputs, t->x + order[i] * l->inputs, l->inputs * sizeof(float));
        add_product(z, l->stride, batch->dense, l->inputs, 1, l->weight, l->width, rows, l->inputs, l->width, 1);
        return;
    }
    forward_sparse(t, l, order, rows, z, batch);
}

/* weight += alpha x^T error, bias += alpha sum of errors; the batch has these examples, if they are dense */
static void first_descend(const Training *t, const Layer *l, const int64_t *order, int64_t rows, const float *error,
                          Batch *batch, float alpha) {
    int64_t j = 0;
    if (!t->begins)
        add_product(l->weight, l->width, batch->dense, 1, l->inputs, error, l->stride, l->inputs, rows, l->width,
                    alpha);
    else {
        gather_sparse(t, order, rows, batch);
        for (; j + STRIPE * LANES <= l->width; j += STRIPE * LANES)
            descend_sparse(STRIPE, l->weight + j, l->width, error + j, l->stride, batch, l->inputs, alpha);
        for (; j < l->width; j += LANES)
            descend_sparse(1, l->weight + j, l->width, error + j, l->stride, batch, l->inputs, alpha);
    }
    if (t->biased[0]) add_rows_to(l->bias, error, l->stride, rows, l->width, alpha);
}

/* Trains the layers above the first, whose output is given; leaves the error of that output in its layer. */
static void step_above(const Training *t, Layer *layers, int64_t rows, const int64_t *labels, float alpha) {
    Layer *last = layers + t->layers - 1;
    for (Layer *l = layers; l < last; l++) {
        Layer *up = l + 1;
        for (int64_t i = 0; i < rows * l->stride; i += LANES) {
            vec z = *(vec *)(l->output + i);
            *(vec *)(l->output + i) = choose(z < 0.0f, (vec){0}, z); /* NaN stays */
        }
        fill_rows(up->output, up->stride, up->bias, rows, up->width);
        add_product(up->output, up->stride, l->output, l->stride, 1, up->weight, up->width, rows, l->outputs,
                    up->width, 1);
    }
    softmax_error(last->output, last->stride, rows, last->outputs, labels);
    last->error = last->output;
    for (Layer *l = last - 1; l >= layers; l--) {
        Layer *up = l + 1;
        transpose(up->turned, l->width, up->weight, up->width, up->inputs, up->outputs);
        memset(l->error, 0, rows * l->stride * sizeof(float));
        add_product(l->error, l->stride, up->error, up->stride, 1, up->turned, l->width, rows, up->outputs,
                    l->width, 1);
        for (int64_t i = 0; i < rows * l->stride; i += LANES) {
            vec z = *(vec *)(l->output + i), e = *(vec *)(l->error + i);
            *(vec *)(l->error + i) = choose(z <= 0.0f, (vec){0}, e); /* as torch: a NaN passes its error on */
        }
    }
    for (Layer *l = layers + 1; l <= last; l++) {
        const Layer *below = l - 1;
        add_product(l->weight, l->width, below->output, 1, below->stride, l->error, l->stride, l->inputs, rows,
                    l->width, alpha);
        if (t->biased[l - layers]) add_rows_to(l->bias, l->error, l->stride, rows, l->width, alpha);
    }
}

static int64_t rows_from(const Training *t, int64_t begin) {
    return t->examples - begin < t->batch ? t->examples - begin : t->batch;
}

static void primal(const Training *t, Layer *layers, Batch *batch, int64_t *labels) {
    for (int64_t epoch = 0; epoch < t->epochs; epoch++)
        for (int64_t begin = 0, rows; begin < t->examples; begin += rows) {
            rows = rows_from(t, begin);
            const int64_t *order = t->orders + epoch * t->examples + begin;
            for (int64_t i = 0; i < rows; i++) labels[i] = t->labels[order[i]];
            first_forward(t, layers, order, rows, layers->output, batch);
            step_above(t, layers, rows, labels, -t->rate / rows);
            first_descend(t, layers, order, rows, layers->error, batch, -t->rate / rows);
        }
}

/* before: the first layer's outputs with the initial weights; d: errors times rates, summed per example */
static void dual(const Training *t, Layer *layers, Batch *batch, int64_t *labels, float *before, float *d) {
    Layer *l = layers;
    const int64_t n = t->examples;
    for (int64_t begin = 0, rows; begin < n; begin += rows) {
        rows = rows_from(t, begin);
        for (int64_t i = 0; i < rows; i++) labels[i] = begin + i;
        first_forward(t, l, labels, rows, before + begin * l->stride, batch);
    }
    for (int64_t epoch = 0; epoch < t->epochs; epoch++)
        for (int64_t begin = 0, rows; begin < n; begin += rows) {
            rows = rows_from(t, begin);
            const int64_t *order = t->orders + epoch * n + begin;
            for (int64_t i = 0; i < rows; i++) {
                labels[i] = t->labels[order[i]];
                memcpy(batch->dense + i * n, t->kernel + order[i] * n, n * sizeof(float));
                memcpy(l->output + i * l->stride, before + order[i] * l->stride, l->width * sizeof(float));
            }
            if (epoch || begin)
                add_product(l->output, l->stride, batch->dense, n, 1, d, l->stride, rows, n, l->width, -1);
            step_above(t, layers, rows, labels, -t->rate / rows);
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < l->width; j++)
                    d[order[i] * l->stride + j] += t->rate / rows * l->error[i * l->stride + j];
        }
    for (int64_t begin = 0, rows; begin < n; begin += rows) {
        rows = rows_from(t, begin);
        for (int64_t i = 0; i < rows; i++) {
            labels[i] = begin + i;
            memcpy(l->error + i * l->stride, d + (begin + i) * l->stride, l->width * sizeof(float));
            if (!t->begins) memcpy(batch->dense + i * l->inputs, t->x + (begin + i) * l->inputs, l->inputs * sizeof(float));
        }
        first_descend(t, l, labels, rows, l->error, batch, -1);
    }
}

static void read_model(const Training *t, Layer *layers) {
    for (int64_t i = 0; i < t->layers; i++) {
        Layer *l = layers + i;
        const float *from = t->start + place_of(t, i);
        transpose(l->weight, l->width, from, l->inputs, l->outputs, l->inputs);
        if (t->biased[i]) memcpy(l->bias, from + l->inputs * l->outputs, l->outputs * sizeof(float));
    }
}

/* update = local - start, in the order of the flat model */
static void write_update(const Training *t, const Layer *layers) {
    for (int64_t i = 0; i < t->layers; i++) {
        const Layer *l = layers + i;
        float *to = t->update + place_of(t, i);
        transpose(to, l->inputs, l->weight, l->width, l->inputs, l->outputs);
        if (t->biased[i]) memcpy(to + l->inputs * l->outputs, l->bias, l->outputs * sizeof(float));
    }
    for (int64_t i = 0, size = place_of(t, t->layers); i < size; i++) t->update[i] -= t->start[i];
}

/* Lay out everything a training needs in `memory`, if it is not NULL; return how many bytes that takes. */
static int64_t lay_out(const Training *t, char *memory, Layer **layers, Batch *batch, int64_t **labels,
                       float **before, float **d) {
    const int64_t n = t->examples, inputs = t->sizes[0], rows = rows_from(t, 0);
    int64_t bytes = 0, most = 0, row = t->kernel && n > inputs ? n : inputs;
    void *found;
#define TAKE(count, type) (found = memory + bytes, bytes += ((count) * sizeof(type) + 63) / 64 * 64, (type *)found)
    *layers = TAKE(t->layers, Layer), *labels = TAKE(rows, int64_t);
    batch->dense = t->begins && !t->kernel ? NULL : TAKE(rows * row, float);
    if (t->begins) {
        for (int64_t i = 0; i < n; i++) {
            int64_t count = t->begins[i + 1] - t->begins[i];
            most = count > most ? count : most;
        }
        batch->entries = TAKE(rows * most, Entry), batch->ends = TAKE(inputs, int32_t);
        batch->from = TAKE(rows, int64_t), batch->to = TAKE(rows, int64_t);
    }
    for (int64_t i = 0; i < t->layers; i++) {
        Layer l = {t->sizes[i], t->sizes[i + 1], padded(t->sizes[i + 1]), padded(t->sizes[i + 1]) + 16};
        l.weight = TAKE(l.inputs * l.width, float), l.bias = TAKE(l.width, float);
        l.turned = TAKE(l.outputs * padded(l.inputs), float);
        l.output = TAKE(rows * l.stride, float), l.error = TAKE(rows * l.stride, float);
        if (i == 0 && t->kernel) *before = TAKE(n * l.stride, float), *d = TAKE(n * l.stride, float);
        if (memory) {
            (*layers)[i] = l;
            memset(l.weight, 0, (char *)(l.error + rows * l.stride) - (char *)l.weight); /* padding is 0 */
            if (i == 0 && t->kernel) memset(*d, 0, n * l.stride * sizeof(float));
        }
    }
    return bytes;
}

/* The work on an input that is not 0, forward and backward, in multiplications of the dense form per output; measured. */
float mlp_nonzero_work(void) { return LANES == 16 ? 7.5f : 5; }

/* How many bytes train_mlp needs. */
int64_t mlp_bytes(const Training *t) {
    Layer *layers;
    Batch batch;
    int64_t *labels;
    float *before, *d;
    return lay_out(t, NULL, &layers, &batch, &labels, &before, &d);
}

/* Train with this memory, which starts on a cache line. */
void train_mlp(const Training *t, char *memory) {
    Layer *layers;
    Batch batch;
    int64_t *labels;
    float *before, *d;
    lay_out(t, memory, &layers, &batch, &labels, &before, &d);
    read_model(t, layers);
    if (t->kernel)
        dual(t, layers, &batch, labels, before, d);
    else
        primal(t, layers, &batch, labels);
    write_update(t, layers);
}

/* Fill in columns and values of the inputs that are not 0; return how many there are. */
int64_t nonzeros(const float *x, int64_t examples, int64_t inputs, int64_t *begins, uint16_t *columns,
                 float *values) {
    int64_t found = 0;
    for (int64_t i = 0; i < examples; i++) {
        begins[i] = found;
        for (int64_t j = 0; j < inputs; j++) {
            columns[found] = j, values[found] = x[i * inputs + j];
            found += x[i * inputs + j] != 0;
        }
    }
    return begins[examples] = found;
}
