/* Pictures that training moves and mirrors: every sample read is one of the (2*crop+1)^2 * 2 pictures that it may become, all of
 * them come up, the same position of the same epoch always gives the same one, and evaluation reads the file as it is.
 * Also raw records: x and y at their places. Takes a folder to write into; prints "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "../../runtime/data.h"

enum { H = 4, W = 5, C = 2, SAMPLES = 32, RECORD = 1 + C * H * W + 2, CROP = 1, WAYS = (2 * CROP + 1) * (2 * CROP + 1) * 2 };

const Plan dl_plan; /* unused: the plan here is made below */

static int passed, failed;

static void ok(const char *what, bool good)
{
	passed += good;
	failed += !good;
	if (!good)
		printf("FAIL %s\n", what);
}

static unsigned char pixel(int sample, int i)
{
	return (unsigned char)(1 + (sample * 7 + i) % 250); /* never zero, which comes in at the edges */
}

static int label(int sample)
{
	return sample % 10;
}

/* A label, the picture, two bytes that belong to nothing. */
static void write_records(const char *path)
{
	FILE *f = fopen(path, "wb");

	if (!f)
		return;
	for (int s = 0; s < SAMPLES; s++) {
		fputc(label(s), f);
		for (int i = 0; i < C * H * W; i++)
			fputc(pixel(s, i), f);
		fputc(0xee, f);
		fputc(0xee, f);
	}
	fclose(f);
}

/* The picture of a sample, moved by (down, right) and perhaps mirrored. */
static void expected(float *out, int sample, int down, int right, bool mirror)
{
	for (int c = 0; c < C; c++)
		for (int y = 0; y < H; y++)
			for (int x = 0; x < W; x++) {
				int from_y = y + down, from_x = (mirror ? W - 1 - x : x) + right;
				bool inside = from_y >= 0 && from_y < H && from_x >= 0 && from_x < W;

				out[(c * H + y) * W + x] =
					inside ? (float)pixel(sample, (c * H + from_y) * W + from_x) : 0;
			}
}

/* Which of the ways this is; -1: none. */
static int way_of(const float *got, int sample)
{
	float want[C * H * W];
	int way = 0;

	for (int down = -CROP; down <= CROP; down++)
		for (int right = -CROP; right <= CROP; right++)
			for (int mirror = 0; mirror < 2; mirror++, way++) {
				expected(want, sample, down, right, mirror);
				if (!memcmp(got, want, sizeof want))
					return way;
			}
	return -1;
}

static const PlanSetting settings[] = {
	{ .key = "file", .kind = 's', .s = "" },       { .key = "test_file", .kind = 's', .s = "" },
	{ .key = "x_shape", .kind = 'l', .n = 3, .list = { C, H, W } },
	{ .key = "y_shape", .kind = 'l', .n = 0 },     { .key = "x_type", .kind = 's', .s = "u8" },
	{ .key = "y_type", .kind = 's', .s = "u8" },   { .key = "x_at", .kind = 'i', .i = 1 },
	{ .key = "y_at", .kind = 'i', .i = 0 },        { .key = "record", .kind = 'i', .i = RECORD },
	{ .key = "header", .kind = 'i', .i = 0 },      { .key = "validation", .kind = 'f', .f = 0 },
	{ .key = "crop", .kind = 'i', .i = CROP },     { .key = "flip", .kind = 'i', .i = 1 },
};
static const PlanData decl = { .name = "d", .type = "raw", .settings = settings,
			       .nsettings = sizeof settings / sizeof *settings };
static const PlanInput inputs[] = {
	{ .name = "d.x", .field = "x", .dtype = PD_F32, .ndim = 3, .dim = { C, H, W } },
	{ .name = "d.y", .field = "y", .dtype = PD_I32, .limit = 10, .ignore = -100 },
};
static const Plan plan = { .version = PLAN_VERSION, .batch = SAMPLES, .inputs = inputs, .ninputs = 2, .data = &decl, .ndata = 1 };

static void read_epochs(const Data *d)
{
	static float x[SAMPLES][C * H * W], again[SAMPLES][C * H * W];
	static int32_t y[SAMPLES];
	bool known = true, same = true, mine = true;
	int seen[WAYS] = { 0 }, all = 0;

	for (int64_t step = 0; step < 40; step++) { /* a step is an epoch */
		DataCursor c = data_at_step(d, (DataOrder){ .seed = 3 }, step);

		data_read(&c, 0, 0, SAMPLES, x);
		data_read(&c, 1, 0, SAMPLES, y);
		data_read(&c, 0, 0, SAMPLES / 2, again); /* in two parts, as micro-batches do */
		data_read(&c, 0, SAMPLES / 2, SAMPLES / 2, again[SAMPLES / 2]);
		same &= !memcmp(x, again, sizeof x);
		for (int s = 0; s < SAMPLES; s++) {
			int way = way_of(x[s], s);

			known &= way >= 0;
			mine &= y[s] == label(s);
			if (way >= 0)
				seen[way]++;
		}
	}
	for (int i = 0; i < WAYS; i++)
		all += seen[i] > 0;
	ok("every picture is the sample's, moved and perhaps mirrored", known);
	ok("in parts the same", same);
	ok("labels stay with their samples", mine);
	ok("all ways come up", all == WAYS);
}

static void read_plain(const Data *d)
{
	float x[C * H * W], want[C * H * W];
	bool same = true;

	for (int s = 0; s < SAMPLES; s++) {
		DataCursor c = data_at_sample(d, SPLIT_TRAIN, s);

		data_read(&c, 0, 0, 1, x);
		expected(want, s, 0, 0, false);
		same &= !memcmp(x, want, sizeof x);
	}
	ok("evaluation reads the file as it is", same);
}

int main(int argc, char **argv)
{
	char path[4096];
	Fail f = { 0 };
	DataOverride file = { .name = "d", .value = path };
	Data *d;

	snprintf(path, sizeof path, "%s/records.bin", argc > 1 ? argv[1] : ".");
	write_records(path);
	d = data_open(&plan, &file, 1, &f);
	ok("records open", d != NULL);
	if (!d)
		printf("%s\n", f.text);
	if (d) {
		read_epochs(d);
		read_plain(d);
		data_close(d);
	}
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
