/* bpe_test TEXT VOCAB [MERGES]: the tokens of a text, one a line, as bpe_oracle.py prints them; then, on standard error, whether
 * their bytes are the text again. A fault is the only line. */
#include "runtime/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Check {
	const Bpe *bpe;
	const unsigned char *text;
	size_t at;
	bool same;
} Check;

static bool take(void *ctx, const int32_t *id, size_t n)
{
	Check *c = ctx;
	for (size_t i = 0; i < n; i++) {
		size_t len;
		const unsigned char *bytes = bpe_token(c->bpe, id[i], &len);
		printf("%d\n", (int)id[i]);
		c->same &= bytes && !memcmp(c->text + c->at, bytes, len);
		c->at += len;
	}
	return true;
}

int main(int argc, char **argv)
{
	Fail f = { 0 };
	Bpe *b = argc > 2 ? bpe_open(argv[2], argc > 3 ? argv[3] : NULL, &f) : NULL;
	FILE *in = argc > 1 ? fopen(argv[1], "rb") : NULL;
	size_t room = 1 << 24, n = 0;
	unsigned char *text = malloc(room);
	if (in && text)
		n = fread(text, 1, room, in);
	Check c = { b, text, 0, true };
	bool ok = b && text && bpe_encode(b, text, n, take, &c, &f);
	if (!ok)
		printf("%s\n", f.text);
	else
		fprintf(stderr, "%s\n", c.same && c.at == n ? "the same text" : "another text");
	if (in)
		fclose(in);
	free(text);
	bpe_close(b);
	return !ok;
}
