/* Text as tokens of a byte-pair vocabulary: encoded once, into a cache file of token ids, which is then mapped as any token
 * file is. The cache file's name holds a hash of the vocabulary, too. */
#include "data_format.h"

#include "file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Bpe *data_vocabulary(const DataSet *s, Fail *f)
{
	const char *vocab = data_text(s, "vocab");
	if (vocab)
		return bpe_open(vocab, data_text(s, "merges"), f);
	fail(f, EXIT_FILES, "data '%s' has no vocabulary: give one with --data %s.vocab=FILE (and --data %s.merges=FILE)",
	     s->decl->name, s->decl->name, s->decl->name);
	return NULL;
}

/* ---- encoding ------------------------------------------------------------------------------- */

enum { BUFFERED = 1 << 16 };

typedef struct Encoding {
	DataSet *set;
	Bpe *bpe;
	bool wide; /* ids of 32 bits, else of 16 */
	const char *path;
	int fd;
	size_t n;
	uint32_t id[BUFFERED];
	Fail *f;
} Encoding;

static bool flush(Encoding *e)
{
	size_t n = e->n;
	uint16_t *narrow = (uint16_t *)(void *)e->id;
	e->n = 0;
	for (size_t i = 0; i < n && !e->wide; i++)
		memcpy(&narrow[i], &(uint16_t){ (uint16_t)e->id[i] }, 2);
	return write_all(e->fd, e->id, n * (e->wide ? 4 : 2)) ||
	       fail(e->f, EXIT_FILES, "cannot write the tokens of %s into the cache: %s", e->path, strerror(errno));
}

static bool take(void *ctx, const int32_t *id, size_t n)
{
	Encoding *e = ctx;
	for (size_t i = 0; i < n; i++) {
		if (e->n == BUFFERED && !flush(e))
			return false;
		e->id[e->n++] = (uint32_t)id[i];
	}
	return true;
}

/* A CacheMake. */
static bool encode(const char *path, int fd, void *ctx, Fail *f)
{
	Encoding *e = ctx;
	const DataMap *text = data_map(e->set, path, path, f);
	e->fd = fd;
	e->path = path;
	e->f = f;
	return text && bpe_encode(e->bpe, text->bytes, (size_t)text->size, take, e, f) && flush(e);
}

static bool hash_file(DataSet *s, const char *path, uint64_t *h, Fail *f)
{
	const DataMap *m = path ? data_map(s, path, path, f) : NULL;
	for (int64_t i = 0; m && i < m->size; i++)
		*h = (*h ^ m->bytes[i]) * 0x100000001b3u;
	return !path || m;
}

const DataMap *data_encode(DataSet *s, const char *path, bool *wide, Fail *f)
{
	char kind[40], cached[4096];
	uint64_t h = 0xcbf29ce484222325u;
	const DataMap *map = NULL;
	Encoding *e = calloc(1, sizeof *e);
	if (!e) {
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	e->set = s;
	e->bpe = data_vocabulary(s, f);
	if (e->bpe && hash_file(s, data_text(s, "vocab"), &h, f) && hash_file(s, data_text(s, "merges"), &h, f)) {
		*wide = e->wide = bpe_size(e->bpe) > 65536;
		snprintf(kind, sizeof kind, "bpe%d-%016" PRIx64, *wide ? 32 : 16, h);
		if (cache_file(path, kind, encode, e, cached, sizeof cached, f))
			map = data_map(s, cached, path, f);
	}
	bpe_close(e->bpe);
	free(e);
	return map;
}
