package keyfuncs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/keyfuncs"
)

// These are tests of one promise: what is one thing to those who verify it has one key,
// however a client spells it, and two things never have the same.

// spelledAlike returns all texts that base64 for URLs, without padding, decodes to the same
// bytes as text. They differ in the unused bits of the last character.
func spelledAlike(text string) []string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	want, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || text == "" {
		return []string{text}
	}
	var alike []string
	for i := range len(alphabet) {
		other := text[:len(text)-1] + alphabet[i:i+1]
		if got, err := base64.RawURLEncoding.DecodeString(other); err == nil && string(got) == string(want) {
			alike = append(alike, other)
		}
	}
	return alike
}

// encode joins the parts of a token.
func encode(parts ...string) string {
	for i := range parts {
		parts[i] = base64.RawURLEncoding.EncodeToString([]byte(parts[i]))
	}
	return strings.Join(parts, ".")
}

// bytesOf returns n bytes, none of which is zero.
func bytesOf(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + i%255)
	}
	return string(b)
}

func bearerKey(t *testing.T, token string) string {
	t.Helper()
	key, err := keyfuncs.Bearer()(request("", "Authorization", "Bearer "+token))
	if err != nil || len(key) != hashLength {
		t.Fatalf("%.80s: got %q, %v", token, key, err)
	}
	return key
}

// Each part of a JWT may be spelled in as many ways as its length leaves bits unused, with
// padding and without. Decoders accept that in the signature; those that encode again what
// they verify accept it in each part.
func TestBearerSpellingsOfJWT(t *testing.T) {
	for name, c := range map[string]struct {
		parts []string
		most  int // spellings of a part
	}{
		"HS256":         {[]string{`{"alg":"HS256"}`, `{"sub":"anna"}`, bytesOf(32)}, 4},
		"HS384":         {[]string{`{"alg":"HS384"}`, `{"sub":"anna!"}`, bytesOf(48)}, 1},
		"HS512":         {[]string{`{"alg":"HS512"}`, `{"sub":"anna"}`, bytesOf(64)}, 16},
		"RS256":         {[]string{`{"alg":"RS256","typ":"JWT"}`, `{"sub":"anna"}`, bytesOf(256)}, 16},
		"EdDSA":         {[]string{`{"typ":"JWT","alg":"EdDSA"}`, `{"sub":"ann"}`, bytesOf(64)}, 16},
		"not signed":    {[]string{`{"alg":"none"}`, `{"sub":"anna"}`, ""}, 4},
		"pretty header": {[]string{" {\n \"alg\" : \"HS256\" }", `{"sub":"anna"}`, bytesOf(32)}, 4},
		"JWE":           {[]string{`{"alg":"RSA-OAEP","enc":"A128GCM"}`, bytesOf(256), bytesOf(12), bytesOf(100), bytesOf(16)}, 16},
		"JWE, dir":      {[]string{`{"alg":"dir","enc":"A128GCM"}`, "", bytesOf(12), bytesOf(101), bytesOf(16)}, 16},
	} {
		token := encode(slices.Clone(c.parts)...)
		want := bearerKey(t, token)
		most := 1
		for i, part := range strings.Split(token, ".") {
			alike := spelledAlike(part)
			most = max(most, len(alike))
			for _, other := range append(alike, part+"=", part+"==") {
				parts := strings.Split(token, ".")
				parts[i] = other
				if got := bearerKey(t, strings.Join(parts, ".")); got != want {
					t.Errorf("%s: another key for part %d as %q", name, i, other)
				}
			}
		}
		if most != c.most {
			t.Errorf("%s: %d spellings of a part, not %d", name, most, c.most)
		}
	}
}

// Everyone can make a second signature by ECDSA from the first, with as many spellings.
func TestBearerSecondSignature(t *testing.T) {
	curve := elliptic.P256()
	private, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed := encode(`{"alg":"ES256","typ":"JWT"}`, `{"sub":"anna"}`)
	hash := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, private, hash[:])
	if err != nil {
		t.Fatal(err)
	}
	keys, spellings := make(map[string]bool), 0
	for _, s := range []*big.Int{s, new(big.Int).Sub(curve.Params().N, s)} {
		var signature [64]byte
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		for _, text := range spelledAlike(base64.RawURLEncoding.EncodeToString(signature[:])) {
			b, _ := base64.RawURLEncoding.DecodeString(text)
			if !ecdsa.Verify(&private.PublicKey, hash[:], new(big.Int).SetBytes(b[:32]), new(big.Int).SetBytes(b[32:])) {
				t.Fatalf("%s is no signature", text)
			}
			spellings++
			keys[bearerKey(t, signed+"."+text)] = true
		}
	}
	if spellings != 32 || len(keys) != 1 {
		t.Errorf("%d spellings have %d keys", spellings, len(keys))
	}
}

// With these, a JWE under a direct key is decrypted whatever its encrypted key is, which
// should be empty.
func TestBearerUnusedEncryptedKey(t *testing.T) {
	jwe := func(key string) string {
		return encode(`{"alg":"dir","enc":"A128GCM"}`, key, bytesOf(12), bytesOf(40), bytesOf(16))
	}
	if bearerKey(t, jwe("")) != bearerKey(t, jwe("any")) {
		t.Error("the encrypted key makes another key")
	}
}

// Tokens that differ in what they say have different keys, and those that only look like a
// JWT are charged as they are.
func TestBearerKeepsTokensApart(t *testing.T) {
	const header = `{"alg":"HS256"}`
	mac := func(secret, text string) string {
		h := hmac.New(sha256.New, []byte(secret))
		h.Write([]byte(text))
		return string(h.Sum(nil))
	}
	tokens := []string{
		encode(header, `{"sub":"anna"}`, mac("a", "anna")),
		encode(header, `{"sub":"anna"}`, mac("b", "anna")), // of another issuer
		encode(header, `{"sub":"ben"}`, mac("a", "ben")),
		encode(header+" ", `{"sub":"anna"}`, mac("a", "anna")),
		encode(header, "", mac("a", "")),
		encode("", header, mac("a", "")),
		encode(header, `{"sub":"anna"}`, ""),
		encode(header, `{"sub":"anna"}`), // and what has other numbers of parts
		encode(header),
		encode(header, "a", "b", "c"),
		encode(header, "a", "b", "c", "d", "e"),
		encode(header, "", "b", "c", "d"),
		encode(header, "", "x", "c", "d"),
		encode(header, "", "b", "x", "d"),
		encode(header, "", "b", "c", "x"),
		encode(header+" ", "", "b", "c", "d"),
		// Opaque tokens: no bit of them is known to be unused.
		"a.b.AA", "a.b.AB", "a.b.AA=", "a.b.AB==", "AA", "AB", "AA=", "aa", "a.b", "a.b.", ".a.b", "..", ".", "....", "a..b",
		encode("v2", "local", "AA"), "v2.local.AA", "v2.local.AB", "v2.local.AC.AA", "v2.local.AC.AB",
		encode(`{"user":1}`, "time", "AAAAAA"), encode(`{"user":1}`, "time", "AAAAAB"), // no JWT: no "alg"
		encode(`["alg"]`, "time", "AAAAAA"), encode(`["alg"]`, "time", "AAAAAB"),
		encode(`"alg"`, "time", "AAAAAA"), encode(`"alg"`, "time", "AAAAAB"),
		strings.Join([]string{"e", "!", "!"}, "."), "1|AAAA", "1|AAAB", "a:b",
	}
	seen := make(map[string]string)
	for _, token := range tokens {
		key := bearerKey(t, token)
		if other, ok := seen[key]; ok && token != other {
			t.Errorf("%q and %q have the same key", token, other)
		}
		seen[key] = token
	}
	for _, opaque := range tokens[len(tokens)-8:] {
		if got, want := bearerKey(t, opaque), keyOf(t, keyfuncs.Hashed(constant(opaque))); got != want {
			t.Errorf("%q: got %q, not the hash %q", opaque, got, want)
		}
	}
}

// What libraries may skip in a JWT, or read in another form, is not charged.
func TestBearerMalformedJWT(t *testing.T) {
	token := encode(`{"alg":"HS256"}`, `{"sub":"anna"}`, bytesOf(32))
	jwe := encode(`{"alg":"dir","enc":"A128GCM"}`, "", bytesOf(12), bytesOf(40), bytesOf(16))
	signed, signature, _ := strings.Cut(token, ".AQ")
	for _, text := range []string{
		token + "!", token + "~disclosed", signed + ".!AQ" + signature, signed + ".+/" + signature, signed + ".=AQ" + signature,
		signed + "!.AQ" + signature, jwe + "!", strings.Replace(jwe, "..", ".!.", 1),
		`{"payload":"e30","protected":"` + strings.Split(token, ".")[0] + `","signature":"AQ"}`, "{", "{}.a.b",
	} {
		key, err := keyfuncs.Bearer()(request("", "Authorization", "Bearer "+text))
		if key != "" || !isError(err, errMalformed) {
			t.Errorf("%q: got %q, %v", text, key, err)
		}
	}
}

func FuzzBearer(f *testing.F) {
	for _, seed := range []string{
		"", secret, encode(`{"alg":"HS256"}`, `{}`, bytesOf(32)), encode(`{"alg":"dir"}`, "", bytesOf(12), "a", bytesOf(16)),
		encode(`{"alg":"none"}`, "", ""), "a.b.c", "e30.e30.", encode(`{"alg":""}`, "", "a") + "==", "....", "{", "\x00", "a b", "=.=.=",
	} {
		f.Add(seed, byte(0))
	}
	f.Fuzz(func(t *testing.T, token string, which byte) {
		key, err := keyfuncs.Bearer()(request("", "Authorization", "Bearer "+token))
		if (key == "") == (err == nil) || err == nil && len(key) != hashLength {
			t.Fatalf("%q: key %q, error %v", token, key, err)
		}
		if err != nil {
			return
		}
		token = strings.Trim(token, " \t")
		parts := strings.Split(token, ".")
		header, errHeader := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[0], "="))
		jwt := errHeader == nil && (len(parts) == 3 || len(parts) == 5) && strings.Contains(string(header), `"alg"`) &&
			strings.HasPrefix(strings.TrimLeft(string(header), " \t\r\n"), "{")
		if !jwt {
			if want := keyOf(t, keyfuncs.Hashed(constant(token))); key != want {
				t.Fatalf("%q: %q, not the hash %q", token, key, want)
			}
			return
		}
		i := int(which) % len(parts)
		for _, other := range spelledAlike(strings.TrimRight(parts[i], "=")) {
			spelled := slices.Clone(parts)
			spelled[i] = other
			if got := bearerKey(t, strings.Join(spelled, ".")); got != key {
				t.Fatalf("%q: another key for part %d as %q", token, i, other)
			}
		}
		if i == len(parts)-1 || len(parts) == 5 && i == 1 {
			return // half of it does not count, or all
		}
		changed := slices.Clone(parts)
		changed[i] = "AAAA" + changed[i]
		if i > 0 && bearerKey(t, strings.Join(changed, ".")) == key {
			t.Fatalf("%q: part %d does not count", token, i)
		}
	})
}

// The spellings of everything else that a client sends: which have one key, and which, as
// the comments of the functions say, have several.
func TestSpellings(t *testing.T) {
	for _, c := range []struct {
		name   string
		f      keyfuncs.Func
		header string
		lines  []string
		keys   int // 1: all have the same; else each has its own
	}{
		{"Bearer, its scheme and spaces", keyfuncs.Bearer(), "Authorization",
			[]string{"Bearer " + secret, "bearer " + secret, "BEARER\t" + secret, "\t Bearer  \t" + secret + " \t"}, 1},
		{"Bearer, letters", keyfuncs.Bearer(), "Authorization", []string{"Bearer " + secret, "Bearer " + strings.ToUpper(secret)}, 2},
		{"Header, spaces", keyfuncs.Header("X-Api-Key"), "x-aPI-kEY", []string{"k", " k", "k\t", "\t k \t"}, 1},
		{"Header, all else", keyfuncs.Header("X-Api-Key"), "X-Api-Key", []string{"k", "K", `"k"`, "%6b", "k, k", "k,k", "k  k", "k k"}, 8},
		{"Cookie, quotation marks and spaces", keyfuncs.Cookie("id"), "Cookie", []string{"id=v", `id="v"`, "id=v ;", " id=v", "a=b;id=v;c=d"}, 1},
		{"Cookie, all else", keyfuncs.Cookie("id"), "Cookie", []string{"id=v", "id=V", "id=%76", "id=v=", "id==v"}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys := make(map[string]bool)
			for _, line := range c.lines {
				key, err := c.f(request("", c.header, line))
				if err != nil {
					t.Errorf("%q: %v", line, err)
				}
				keys[key] = true
			}
			if len(keys) != c.keys {
				t.Errorf("%d spellings have %d keys, not %d", len(c.lines), len(keys), c.keys)
			}
		})
	}
}

// A signed cookie has no second spelling: no bit of it is unused, and what net/http removes
// around it makes no other key.
func TestSignedCookieSpellings(t *testing.T) {
	c := cookies(t)
	value := c.New(time.Now()).Value
	if alike := spelledAlike(value); len(alike) != 1 {
		t.Errorf("%d spellings", len(alike))
	}
	id := idOf(t, c, value)
	for _, line := range []string{
		cookieName + `="` + value + `"`, " " + cookieName + "=" + value + " ", "a=b; " + cookieName + "=" + value + ";;",
		cookieName + "=" + value + "; " + cookieName + "=" + value, cookieName + "=; " + cookieName + "=" + value,
	} {
		wantKey(t, c.Key, request("203.0.113.7:1", "Cookie", line), id)
	}
	refuses(t, c.Key, `""`+value+`""`)
	refuses(t, c.Key, value+"==")
	refuses(t, c.Key, " "+value[:75]+"%"+value[75:])
}

// However a path is written, a route has one key; what the mux corrects by a redirection
// does not reach the route.
func TestRouteSpellings(t *testing.T) {
	key := keyfuncs.All(keyfuncs.Route(), keyfuncs.PathValue("id"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", func(w http.ResponseWriter, r *http.Request) {
		got, err := key(r)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Key", got)
	})
	for target, want := range map[string]string{
		"/items/a":                "15:GET /items/{id},1:a,",
		"/items/a?x=y":            "15:GET /items/{id},1:a,",
		"/items/%61":              "15:GET /items/{id},1:a,",
		"/%69tems/a":              "15:GET /items/{id},1:a,",
		"http://other:80/items/a": "15:GET /items/{id},1:a,",
		"/items/A":                "15:GET /items/{id},1:A,",
		"/items/a%2Fb":            "15:GET /items/{id},3:a/b,",
		"//items/a":               "",
		"/./items/a":              "",
		"/items/../items/a":       "",
		"/items/a/":               "",
		"/Items/a":                "",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(method, target, nil))
			if got := w.Header().Get("Key"); got != want {
				t.Errorf("%s %s: got %q, want %q", method, target, got, want)
			}
		}
	}
}
