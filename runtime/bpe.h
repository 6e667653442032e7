/* Byte-pair encoding as GPT-2's (Sennrich et al., 2016; Radford et al., 2019): text to numbers of a vocabulary and back.
 *
 * Vocabularies are the user's files: vocab.json (token to number) with merges.txt (one pair a line, the first merged first), or
 * one tokenizer.json that holds both. */
#ifndef DLC_RUNTIME_BPE_H
#define DLC_RUNTIME_BPE_H

#include "fail.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Bpe Bpe;

/* A tokenizer.json needs no merges, which may be NULL. Faults name the file, and the line where there is one. */
Bpe *bpe_open(const char *vocab, const char *merges, Fail *f);
void bpe_close(Bpe *b);
/* One more than the largest number. */
int64_t bpe_size(const Bpe *b);
/* The bytes of a token; NULL where the vocabulary has no such number. */
const unsigned char *bpe_token(const Bpe *b, int64_t id, size_t *n);
/* Takes a word's tokens; false ends the encoding. */
typedef bool (*BpeSink)(void *ctx, const int32_t *id, size_t n);
/* The tokens of a text, word by word. Fails where a byte has no token, or the sink ends it (then f is the sink's). */
bool bpe_encode(Bpe *b, const unsigned char *text, size_t n, BpeSink sink, void *ctx, Fail *f);

/* ---- bpe_split.c ---- */

/* Bytes of the first word of a text, n > 0: what GPT-2's pattern matches there. Merges never cross words. */
size_t bpe_word(const unsigned char *text, size_t n);

#endif
