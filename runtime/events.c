/* TensorBoard event files (see events.h).
 *
 * A file is a sequence of records in TensorFlow's framing:
 *
 *     u64 length | u32 masked CRC-32C of the length | bytes | u32 masked CRC-32C of the bytes
 *
 * whose bytes are an Event message of protocol buffers: 1: wall_time (double), 2: step (int64),
 * 3: file_version (string, the first record's "brain.Event:2"), 5: summary { 1: value { 1: tag
 * (string), 2: simple_value (float) } }. Sources: tensorflow/core/util/event.proto,
 * framework/summary.proto, lib/io/record_writer.cc. */
#include "events.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 4096, RECORD_MAX = 256 };

struct Events {
	int fd;
	size_t n;
	unsigned char buffer[BUFFER];
	uint32_t crc_table[256];
};

/* ---- framing -------------------------------------------------------------------------------- */

static void make_crc_table(Events *e)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;
		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? 0x82f63b78u ^ c >> 1 : c >> 1;
		e->crc_table[i] = c;
	}
}

static uint32_t masked_crc(const Events *e, const unsigned char *p, size_t n)
{
	uint32_t c = 0xffffffffu;
	for (size_t i = 0; i < n; i++)
		c = e->crc_table[(c ^ p[i]) & 255] ^ c >> 8;
	c = ~c;
	return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void put(unsigned char *p, size_t *n, const void *bytes, size_t count)
{
	memcpy(p + *n, bytes, count);
	*n += count;
}

/* Little-endian. */
static void put_fixed(unsigned char *p, size_t *n, uint64_t v, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		p[(*n)++] = (unsigned char)(v >> 8 * i);
}

static void put_varint(unsigned char *p, size_t *n, uint64_t v)
{
	for (; v >= 128; v >>= 7)
		p[(*n)++] = (unsigned char)(v | 128);
	p[(*n)++] = (unsigned char)v;
}

static void add_record(Events *e, const unsigned char *record, size_t size)
{
	unsigned char length[8];
	size_t n = 0;
	if (e->n + size + 16 > BUFFER) /* the caller flushes after every step */
		return;
	put_fixed(length, &n, size, 8);
	put(e->buffer, &e->n, length, 8);
	put_fixed(e->buffer, &e->n, masked_crc(e, length, 8), 4);
	put(e->buffer, &e->n, record, size);
	put_fixed(e->buffer, &e->n, masked_crc(e, record, size), 4);
}

/* ---- messages ------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static unsigned char key(int field, int wire)
{
	return (unsigned char)(field << 3 | wire);
}

static void put_time(unsigned char *p, size_t *n)
{
	struct timespec t;
	uint64_t bits;
	clock_gettime(CLOCK_REALTIME, &t);
	double wall = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
	memcpy(&bits, &wall, sizeof bits);
	p[(*n)++] = key(1, FIXED64);
	put_fixed(p, n, bits, 8);
}

static void put_bytes(unsigned char *p, size_t *n, int field, const void *bytes, size_t count)
{
	p[(*n)++] = key(field, BYTES);
	put_varint(p, n, count);
	put(p, n, bytes, count);
}

void events_scalar(Events *e, int64_t step, const char *tag, double value)
{
	unsigned char point[RECORD_MAX], summary[RECORD_MAX], record[RECORD_MAX];
	size_t np = 0, ns = 0, nr = 0, length = strlen(tag);
	float single = (float)value;
	uint32_t bits;
	if (!isfinite(single) || length > 64)
		return;
	memcpy(&bits, &single, sizeof bits);
	put_bytes(point, &np, 1, tag, length);
	point[np++] = key(2, FIXED32);
	put_fixed(point, &np, bits, 4);
	put_bytes(summary, &ns, 1, point, np);
	put_time(record, &nr);
	record[nr++] = key(2, VARINT);
	put_varint(record, &nr, (uint64_t)step);
	put_bytes(record, &nr, 5, summary, ns);
	add_record(e, record, nr);
}

/* ---- the file ------------------------------------------------------------------------------- */

bool events_flush(Events *e)
{
	bool ok = write_all(e->fd, e->buffer, e->n);
	e->n = 0;
	return ok;
}

/* TensorBoard looks for "tfevents" in the name; a second file of the same second gets another number. */
static int create(const char *dir)
{
	for (int i = 0; i < 1000; i++) {
		char path[4200];
		snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.dlc.%d", dir,
			 (long long)time(NULL), i);
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd >= 0 || errno != EEXIST)
			return fd;
	}
	return -1;
}

Events *events_open(const char *dir, Fail *f)
{
	static const char version[] = "brain.Event:2";
	unsigned char record[RECORD_MAX];
	size_t n = 0;
	Events *e = strlen(dir) < 4000 ? calloc(1, sizeof *e) : NULL;
	if (!e) {
		fail(f, EXIT_FILES, "--tensorboard: the folder's path is too long");
		return NULL;
	}
	mkdir(dir, 0777);
	if ((e->fd = create(dir)) < 0) {
		fail(f, EXIT_FILES, "cannot write an event file into %s: %s", dir, strerror(errno));
		free(e);
		return NULL;
	}
	make_crc_table(e);
	put_time(record, &n);
	put_bytes(record, &n, 3, version, sizeof version - 1);
	add_record(e, record, n);
	return e;
}

void events_close(Events *e)
{
	if (!e)
		return;
	close(e->fd);
	free(e);
}
