/* Makes data files for the tests: samples whose class can be learnt.
 *
 *     mkdata idx3 FILE N [TYPE]    N images of 4x4 bytes       mkdata idx1 FILE N [LABEL]   labels;
 * the last one LABEL mkdata npyx FILE N [F]       N rows of 16 (F) f32        mkdata npyy FILE N
 * labels as i64 mkdata csv FILE N [COLUMNS]  with a header               mkdata text FILE N N bytes
 * of letters mkdata tokens FILE N [LAST]  the same as 16-bit tokens, behind llm.c's header if
 * FILE ends in .llmc; the last token LAST mkdata npyval FILE           prints rows, columns and
 * a sum of a .npy of f32 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int label(int i)
{
	return i * 7 % 10;
}

static int pixel(int i, int p)
{
	return p % 10 == label(i) ? 200 + (i + p) % 50 : (i * 31 + p * 17) % 60;
}

static void big_endian(FILE *f, uint32_t v)
{
	for (int s = 24; s >= 0; s -= 8)
		fputc((int)(v >> s & 255), f);
}

static void little_endian(FILE *f, uint32_t v, int bytes)
{
	for (int s = 0; s < bytes; s++)
		fputc((int)(v >> 8 * s & 255), f);
}

static int letter(int i)
{
	return i % 61 == 60 ? '\n' : 'a' + (i * i / 7 + i) % 26;
}

static void npy(FILE *f, const char *descr, const char *shape)
{
	char text[118];
	int n = snprintf(text, sizeof text,
			 "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
	fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f);
	fprintf(f, "%s%*s\n", text, 117 - n, "");
}

static int npy_value(const char *path)
{
	unsigned char head[10];
	char text[4096] = "";
	FILE *f = fopen(path, "rb");
	if (!f || fread(head, 1, 10, f) != 10)
		return 1;
	size_t length = (size_t)(head[8] | head[9] << 8);
	if (fread(text, 1, length, f) != length)
		return 1;
	const char *shape = strstr(text, "'shape': (");
	int rows = 0, columns = 0;
	if (!shape || sscanf(shape, "'shape': (%d, %d)", &rows, &columns) != 2)
		return 1;
	float v;
	long n = 0;
	double sum = 0;
	while (fread(&v, sizeof v, 1, f) == 1) {
		sum += (double)v;
		n++;
	}
	printf("%d %d %ld %s\n", rows, columns, n, sum == sum ? "finite" : "nan");
	return fclose(f);
}

int main(int argc, char **argv)
{
	if (argc >= 3 && !strcmp(argv[1], "npyval"))
		return npy_value(argv[2]);
	if (argc < 4)
		return 2;
	int n = atoi(argv[3]), extra = argc > 4 ? atoi(argv[4]) : -1;
	char shape[64];
	FILE *f = fopen(argv[2], "wb");
	if (!f)
		return 2;
	if (!strcmp(argv[1], "idx3")) {
		big_endian(f, 0x00000003u | (uint32_t)(extra < 0 ? 8 : extra) << 8);
		big_endian(f, (uint32_t)n);
		big_endian(f, 4);
		big_endian(f, 4);
		for (int i = 0; i < n * 16; i++)
			fputc(pixel(i / 16, i % 16), f);
	} else if (!strcmp(argv[1], "idx1")) {
		big_endian(f, 0x00000801);
		big_endian(f, (uint32_t)n);
		for (int i = 0; i < n; i++)
			fputc(i == n - 1 && extra >= 0 ? extra : label(i), f);
	} else if (!strcmp(argv[1], "npyx")) {
		int columns = extra > 0 ? extra : 16;
		snprintf(shape, sizeof shape, "%d, %d", n, columns);
		npy(f, "<f4", shape);
		for (int i = 0; i < n * columns; i++) {
			float v = (float)pixel(i / columns, i % columns) / 255;
			fwrite(&v, sizeof v, 1, f);
		}
	} else if (!strcmp(argv[1], "npyy")) {
		snprintf(shape, sizeof shape, "%d,", n);
		npy(f, "<i8", shape);
		for (int i = 0; i < n; i++) {
			int64_t v = label(i);
			fwrite(&v, sizeof v, 1, f);
		}
	} else if (!strcmp(argv[1], "csv")) {
		int columns = extra > 0 ? extra : 17;
		for (int c = 0; c < columns; c++)
			fprintf(f, "%sc%d", c ? "," : "", c);
		for (int i = 0; i < n; i++) {
			for (int c = 0; c < columns - 1; c++)
				fprintf(f, "%c%.4f", c ? ',' : '\n', (double)pixel(i, c) / 255);
			fprintf(f, ",%d", label(i));
		}
		fputc('\n', f);
	} else if (!strcmp(argv[1], "text")) {
		for (int i = 0; i < n; i++)
			fputc(letter(i), f);
	} else if (!strcmp(argv[1], "tokens")) {
		const char *end = strrchr(argv[2], '.');
		int wide = end && strstr(end, "32");
		if (end && strstr(end, ".llmc"))
			for (int i = 0; i < 256; i++)
				little_endian(f, i == 0   ? (wide ? 20240801 : 20240520)
						 : i == 1 ? (wide ? 7 : 1)
						 : i == 2 ? (uint32_t)n
							  : 0, 4);
		for (int i = 0; i < n; i++)
			little_endian(f, (uint32_t)(i == n - 1 && extra >= 0 ? extra : letter(i)), wide ? 4 : 2);
	}
	return fclose(f) ? 2 : 0;
}
