/* Byte-pair encoding; see bpe.h.
 *
 * Files write a token's bytes as characters: printable ones stand for themselves, the other 68 bytes for the characters from
 * U+0100 on, so that no token holds white space or is no text. Here a token is its bytes.
 *
 * Encoding a word: it begins as tokens of one byte each. The pair of neighbours that comes first among the merges is replaced by its
 * token wherever it stands, from left to right, until no pair of neighbours is a merge. Pairs wait in a heap by (rank, place), so
 * that a word of n bytes takes n log n; words that come again, which are most, are looked up. */
#include "bpe.h"

#include "data_format.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID_MAX = 1 << 24, WORD_KEPT = 64, WORDS_KEPT = 1 << 18 };

typedef struct Bytes {
	const unsigned char *at;
	size_t n;
} Bytes;

/* A pair of neighbours: what it becomes, and which merge that is. */
typedef struct Merge {
	uint64_t pair; /* left + 1 above right; 0: a free slot */
	int32_t rank, id;
} Merge;

/* A word that was encoded before. */
typedef struct Word {
	unsigned char *bytes; /* NULL: a free slot; the tokens follow behind */
	int32_t *id;
	uint32_t n, ids;
} Word;

typedef struct Symbol {
	int32_t id;   /* -1: part of the one before */
	int64_t prev, next; /* neighbours; -1: none */
} Symbol;

typedef struct Pair {
	int64_t rank, at; /* of the left symbol */
	uint64_t pair;
} Pair;

struct Bpe {
	const char *path; /* for messages */
	json_t *file;
	unsigned char *store; /* the bytes of all tokens */
	Bytes *token;         /* by number */
	int64_t size;
	int32_t of_byte[256]; /* the token of a single byte; -1: none */
	Merge *merge;         /* a hash table, at most half full */
	size_t merge_mask;
	Word *word; /* likewise */
	size_t words;
	/* Of the word at hand: */
	Symbol *symbol;
	Pair *heap, *fresh;
	size_t nheap, nfresh, room;
	int32_t *out;
};

static bool no_memory(Fail *f)
{
	return fail(f, EXIT_FILES, "out of memory");
}

static uint64_t mix(uint64_t h)
{
	h ^= h >> 32;
	h *= 0x9fb21c651e98df25u;
	return h ^ h >> 28;
}

/* ---- vocabularies --------------------------------------------------------------------------- */

/* The byte that a character of a vocabulary file stands for; -1: none. */
static int byte_of(uint32_t c)
{
	if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF))
		return (int)c;
	if (c < 0x100 || c > 0x143)
		return -1;
	c -= 0x100; /* the others in order: 0..0x20, 0x7F..0xA0, 0xAD */
	return (int)(c <= 0x20 ? c : c <= 0x42 ? c - 0x21 + 0x7F : 0xAD);
}

/* The bytes that `text`, UTF-8, stands for; their number, or -1 where a character stands for none. */
static int64_t bytes_of(const char *text, unsigned char *out)
{
	const unsigned char *p = (const unsigned char *)text;
	int64_t n = 0;
	while (*p) {
		uint32_t c = *p++;
		if (c >= 0xC0 && c < 0xE0 && (*p & 0xC0) == 0x80)
			c = (c & 0x1F) << 6 | (*p++ & 0x3Fu);
		else if (c >= 0x80)
			return -1;
		int byte = byte_of(c);
		if (byte < 0)
			return -1;
		out[n++] = (unsigned char)byte;
	}
	return n;
}

static json_t *read_json(const char *path, Fail *f)
{
	json_error_t e;
	FILE *in = fopen(path, "rbe");
	if (!in) {
		fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
		return NULL;
	}
	json_t *j = json_loadf(in, JSON_REJECT_DUPLICATES, &e);
	fclose(in);
	if (!j)
		fail(f, EXIT_INPUT, "%s:%d: not a vocabulary in JSON: %s", path, e.line, e.text);
	return j;
}

/* The largest number, and the bytes that all tokens take; false where an entry is not one. */
static bool measure(Bpe *b, json_t *vocab, size_t *bytes, Fail *f)
{
	const char *token;
	json_t *id;
	json_object_foreach(vocab, token, id)
	{
		int64_t i = json_is_integer(id) ? json_integer_value(id) : -1;
		if (i < 0 || i >= ID_MAX)
			return fail(f, EXIT_INPUT, "%s: token '%.60s' has no number from 0 to %d", b->path, token, ID_MAX - 1);
		b->size = i >= b->size ? i + 1 : b->size;
		*bytes += strlen(token);
	}
	return b->size > 0 || fail(f, EXIT_INPUT, "%s: the vocabulary is empty", b->path);
}

static bool read_tokens(Bpe *b, json_t *vocab, Fail *f)
{
	size_t bytes = 1, at = 0;
	const char *token;
	json_t *id;
	if (!json_is_object(vocab))
		return fail(f, EXIT_INPUT, "%s: not a vocabulary: expected an object of tokens and their numbers", b->path);
	if (!measure(b, vocab, &bytes, f))
		return false;
	b->store = malloc(bytes);
	b->token = calloc((size_t)b->size, sizeof *b->token);
	if (!b->store || !b->token)
		return no_memory(f);
	memset(b->of_byte, -1, sizeof b->of_byte);
	json_object_foreach(vocab, token, id)
	{
		Bytes *t = &b->token[json_integer_value(id)];
		int64_t n = bytes_of(token, b->store + at);
		if (n < 0)
			return fail(f, EXIT_INPUT, "%s: token '%.60s' is not in the alphabet of a byte-pair vocabulary", b->path,
				    token);
		if (t->at)
			return fail(f, EXIT_INPUT, "%s: two tokens have the number %lld", b->path, json_integer_value(id));
		*t = (Bytes){ b->store + at, (size_t)n };
		if (n == 1)
			b->of_byte[b->store[at]] = (int32_t)json_integer_value(id);
		at += (size_t)n;
	}
	return true;
}

/* ---- merges --------------------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right)
{
	return (uint64_t)(left + 1) << 32 | (uint32_t)right;
}

static const Merge *find_merge(const Bpe *b, uint64_t pair)
{
	for (size_t i = mix(pair) & b->merge_mask; b->merge[i].pair; i = (i + 1) & b->merge_mask)
		if (b->merge[i].pair == pair)
			return &b->merge[i];
	return NULL;
}

static bool alloc_merges(Bpe *b, size_t n, Fail *f)
{
	size_t slots = 16;
	while (slots < 2 * n + 2)
		slots *= 2;
	b->merge_mask = slots - 1;
	b->merge = calloc(slots, sizeof *b->merge);
	return b->merge || no_memory(f);
}

/* `left` and `right` as the files write them; a pair that is there already keeps its rank. */
static bool add_merge(Bpe *b, json_t *vocab, const char *left, const char *right, int32_t rank, const char *where, Fail *f)
{
	char whole[2000];
	const char *part[3] = { left, right, whole };
	int32_t id[3];
	if (snprintf(whole, sizeof whole, "%s%s", left, right) >= (int)sizeof whole)
		return fail(f, EXIT_INPUT, "%s: the merge is too long", where);
	for (int i = 0; i < 3; i++) {
		const json_t *j = json_object_get(vocab, part[i]);
		if (!j)
			return fail(f, EXIT_INPUT, "%s: '%.60s' of a merge is not in the vocabulary", where, part[i]);
		id[i] = (int32_t)json_integer_value(j);
	}
	uint64_t pair = pair_of(id[0], id[1]);
	size_t i = mix(pair) & b->merge_mask;
	while (b->merge[i].pair && b->merge[i].pair != pair)
		i = (i + 1) & b->merge_mask;
	if (!b->merge[i].pair)
		b->merge[i] = (Merge){ pair, rank, id[2] };
	return true;
}

/* Splits "LEFT RIGHT" in place. */
static bool split_merge(char *line, const char **left, const char **right)
{
	char *blank = strchr(line, ' ');
	if (!blank || blank == line || !blank[1] || strchr(blank + 1, ' '))
		return false;
	*blank = 0;
	*left = line;
	*right = blank + 1;
	return true;
}

/* merges.txt: a first line that begins with #version is no merge. */
static bool read_merges(Bpe *b, json_t *vocab, const char *path, Fail *f)
{
	FILE *in = fopen(path, "rbe");
	char line[2000], where[300];
	const char *left, *right;
	int32_t rank = 0, at = 0, lines = 0;
	if (!in)
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	for (int c; (c = getc(in)) != EOF;)
		lines += c == '\n';
	rewind(in);
	bool ok = alloc_merges(b, (size_t)lines + 1, f);
	while (ok && fgets(line, sizeof line, in)) {
		at++;
		line[strcspn(line, "\r\n")] = 0;
		if (!*line || (at == 1 && !strncmp(line, "#version", 8)))
			continue;
		snprintf(where, sizeof where, "%.200s:%d", path, (int)at);
		ok = split_merge(line, &left, &right) ? add_merge(b, vocab, left, right, rank++, where, f)
						      : fail(f, EXIT_INPUT, "%s: expected two tokens with a blank between them", where);
	}
	ok = ok && (!ferror(in) || fail(f, EXIT_FILES, "%s: %s", path, strerror(errno)));
	fclose(in);
	return ok;
}

/* tokenizer.json: a list of "LEFT RIGHT" or of [LEFT, RIGHT]. */
static bool read_merge_list(Bpe *b, json_t *vocab, json_t *list, Fail *f)
{
	if (!json_is_array(list))
		return fail(f, EXIT_INPUT, "%s: 'model' has no list 'merges'", b->path);
	if (!alloc_merges(b, json_array_size(list), f))
		return false;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *m = json_array_get(list, i);
		char line[2000] = "", where[300];
		const char *left = json_string_value(json_array_get(m, 0)), *right = json_string_value(json_array_get(m, 1));
		snprintf(where, sizeof where, "%.200s: merge %zu", b->path, i);
		if (json_is_string(m))
			snprintf(line, sizeof line, "%s", json_string_value(m));
		if (json_is_string(m) ? !split_merge(line, &left, &right) : !left || !right)
			return fail(f, EXIT_INPUT, "%s: expected two tokens", where);
		if (!add_merge(b, vocab, left, right, (int32_t)i, where, f))
			return false;
	}
	return true;
}

/* Other ways to cut words than GPT-2's would give other tokens. */
static bool check_splits(const Bpe *b, json_t *pre, Fail *f)
{
	const char *type = json_string_value(json_object_get(pre, "type"));
	json_t *regex = json_object_get(pre, "use_regex"), *blank = json_object_get(pre, "add_prefix_space");
	if (!type || strcmp(type, "ByteLevel") != 0 || json_is_false(regex))
		return fail(f, EXIT_INPUT, "%s: its pre_tokenizer is '%s', expected GPT-2's, 'ByteLevel' with its pattern", b->path,
			    type ? type : "");
	return !json_is_true(blank) || fail(f, EXIT_INPUT, "%s: add_prefix_space is set, expected GPT-2's pre_tokenizer", b->path);
}

static bool read_all(Bpe *b, const char *merges, Fail *f)
{
	json_t *model = json_object_get(b->file, "model");
	if (!json_is_object(model) && merges)
		return read_tokens(b, b->file, f) && read_merges(b, b->file, merges, f);
	if (!json_is_object(model))
		return fail(f, EXIT_INPUT, "%s: no tokenizer.json, so its merges are in a file of their own: give `merges`", b->path);
	const char *type = json_string_value(json_object_get(model, "type"));
	if (type && strcmp(type, "BPE") != 0)
		return fail(f, EXIT_INPUT, "%s: a tokenizer of type '%s', expected 'BPE'", b->path, type);
	json_t *vocab = json_object_get(model, "vocab");
	return check_splits(b, json_object_get(b->file, "pre_tokenizer"), f) && read_tokens(b, vocab, f) &&
	       read_merge_list(b, vocab, json_object_get(model, "merges"), f);
}

Bpe *bpe_open(const char *vocab, const char *merges, Fail *f)
{
	Bpe *b = calloc(1, sizeof *b);
	if (!b) {
		no_memory(f);
		return NULL;
	}
	b->path = vocab;
	b->file = read_json(vocab, f);
	b->word = calloc(2 * WORDS_KEPT, sizeof *b->word);
	bool ok = b->file && (b->word || no_memory(f)) && read_all(b, merges, f);
	json_decref(b->file);
	b->file = NULL;
	if (ok)
		return b;
	bpe_close(b);
	return NULL;
}

void bpe_close(Bpe *b)
{
	if (!b)
		return;
	for (size_t i = 0; b->word && i < 2 * WORDS_KEPT; i++) {
		free(b->word[i].bytes);
		free(b->word[i].id);
	}
	free(b->word);
	free(b->store);
	free(b->token);
	free(b->merge);
	free(b->symbol);
	free(b->heap);
	free(b->fresh);
	free(b->out);
	free(b);
}

int64_t bpe_size(const Bpe *b)
{
	return b->size;
}

const unsigned char *bpe_token(const Bpe *b, int64_t id, size_t *n)
{
	Bytes t = id >= 0 && id < b->size ? b->token[id] : (Bytes){ NULL, 0 };
	*n = t.n;
	return t.at;
}

/* ---- words ---------------------------------------------------------------------------------- */

static bool before(const Pair *a, const Pair *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push(Bpe *b, Pair p)
{
	size_t i = b->nheap++;
	for (; i > 0 && before(&p, &b->heap[(i - 1) / 2]); i = (i - 1) / 2)
		b->heap[i] = b->heap[(i - 1) / 2];
	b->heap[i] = p;
}

static Pair pop(Bpe *b)
{
	Pair top = b->heap[0], p = b->heap[--b->nheap];
	size_t i = 0, child;
	while ((child = 2 * i + 1) < b->nheap) {
		child += child + 1 < b->nheap && before(&b->heap[child + 1], &b->heap[child]);
		if (!before(&b->heap[child], &p))
			break;
		b->heap[i] = b->heap[child];
		i = child;
	}
	b->heap[i] = p;
	return top;
}

/* The pair of the symbol at `at` and the next one, where that is a merge. */
static bool pair_at(const Bpe *b, int64_t at, Pair *out)
{
	if (at < 0 || b->symbol[at].next < 0)
		return false;
	uint64_t pair = pair_of(b->symbol[at].id, b->symbol[b->symbol[at].next].id);
	const Merge *m = find_merge(b, pair);
	if (m)
		*out = (Pair){ m->rank, at, pair };
	return m != NULL;
}

static void note_fresh(Bpe *b, int64_t at)
{
	Pair p;
	if (pair_at(b, at, &p))
		b->fresh[b->nfresh++] = p;
}

static void merge_at(Bpe *b, const Pair *p)
{
	Symbol *left = &b->symbol[p->at];
	int64_t next = left->next;
	if (left->id < 0 || next < 0 || pair_of(left->id, b->symbol[next].id) != p->pair)
		return; /* it is gone */
	left->id = find_merge(b, p->pair)->id;
	left->next = b->symbol[next].next;
	b->symbol[next].id = -1;
	if (left->next >= 0)
		b->symbol[left->next].prev = p->at;
	note_fresh(b, left->prev);
	note_fresh(b, p->at);
}

/* Room for a word of n bytes. A merge takes a symbol away and makes two pairs at most. */
static bool reserve(Bpe *b, size_t n, Fail *f)
{
	if (n <= b->room)
		return true;
	size_t room = 2 * n > 256 ? 2 * n : 256;
	free(b->symbol);
	free(b->heap);
	free(b->fresh);
	free(b->out);
	b->symbol = malloc(room * sizeof *b->symbol);
	b->heap = malloc(3 * room * sizeof *b->heap);
	b->fresh = malloc(2 * room * sizeof *b->fresh);
	b->out = malloc(room * sizeof *b->out);
	b->room = b->symbol && b->heap && b->fresh && b->out ? room : 0;
	return b->room > 0 || no_memory(f);
}

/* The tokens of a word, in b->out; their number, or 0 after a failure. */
static size_t merge_word(Bpe *b, const unsigned char *word, size_t n, Fail *f)
{
	if (!reserve(b, n, f))
		return 0;
	for (size_t i = 0; i < n; i++) {
		b->symbol[i] = (Symbol){ b->of_byte[word[i]], (int64_t)i - 1, i + 1 < n ? (int64_t)i + 1 : -1 };
		if (b->symbol[i].id < 0) {
			fail(f, EXIT_INPUT, "%s: the vocabulary has no token of the byte 0x%02x, which the text has", b->path, word[i]);
			return 0;
		}
	}
	Pair p;
	b->nheap = b->nfresh = 0;
	for (size_t i = 0; i < n; i++)
		if (pair_at(b, (int64_t)i, &p))
			push(b, p);
	while (b->nheap) { /* one merge, wherever it stands; what it makes comes afterwards */
		int64_t rank = b->heap[0].rank;
		while (b->nheap && b->heap[0].rank == rank) {
			p = pop(b);
			merge_at(b, &p);
		}
		while (b->nfresh)
			push(b, b->fresh[--b->nfresh]);
	}
	size_t ids = 0;
	for (int64_t i = 0; i >= 0; i = b->symbol[i].next)
		b->out[ids++] = b->symbol[i].id;
	return ids;
}

/* Words are looked up, and kept where they are short and there is room. */
static Word *find_word(Bpe *b, const unsigned char *word, size_t n)
{
	uint64_t h = n;
	for (size_t i = 0; i < n; i++)
		h = (h ^ word[i]) * 0x100000001b3u;
	size_t i = mix(h) & (2 * WORDS_KEPT - 1);
	while (b->word[i].bytes && (b->word[i].n != n || memcmp(b->word[i].bytes, word, n) != 0))
		i = (i + 1) & (2 * WORDS_KEPT - 1);
	return &b->word[i];
}

static void keep_word(Bpe *b, Word *w, const unsigned char *word, size_t n, size_t ids)
{
	if (b->words >= WORDS_KEPT)
		return;
	unsigned char *bytes = malloc(n);
	int32_t *id = malloc(ids * sizeof *id);
	if (!bytes || !id) { /* it will be computed again */
		free(bytes);
		free(id);
		return;
	}
	memcpy(bytes, word, n);
	memcpy(id, b->out, ids * sizeof *id);
	*w = (Word){ bytes, id, (uint32_t)n, (uint32_t)ids };
	b->words++;
}

bool bpe_encode(Bpe *b, const unsigned char *text, size_t n, BpeSink sink, void *ctx, Fail *f)
{
	for (size_t at = 0, len; at < n; at += len) {
		len = bpe_word(text + at, n - at);
		Word *w = len <= WORD_KEPT ? find_word(b, text + at, len) : NULL;
		if (w && w->bytes) {
			if (!sink(ctx, w->id, w->ids))
				return false;
			continue;
		}
		size_t ids = merge_word(b, text + at, len, f);
		if (ids == 0)
			return false;
		if (w)
			keep_word(b, w, text + at, len, ids);
		if (!sink(ctx, b->out, ids))
			return false;
	}
	return true;
}
