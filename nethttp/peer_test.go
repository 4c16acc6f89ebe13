package nethttp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// What a server says, and for how long nothing is sent then.
func TestReadsOfResponses(t *testing.T) {
	const date = "Sun, 06 Nov 1994 08:49:37 GMT"
	for _, test := range []struct {
		status int
		fields string // name: value, in lines
		want   time.Duration
	}{
		{200, "", 0},
		{200, "Retry-After: 7", 0}, // it means something else there
		{301, "Retry-After: 7", 0},
		{503, "", 0},
		{503, "Retry-After: 7", 7 * time.Second},
		{429, "Retry-After: 7", 7 * time.Second},
		{429, "Retry-After: 0", time.Second}, // at once is no help
		{429, "", time.Second},
		{429, "Retry-After: -7", time.Second},
		{429, "Retry-After: +7", time.Second},
		{429, "Retry-After: 1.5", time.Second},
		{429, "Retry-After: soon", time.Second},
		{429, "Retry-After: 7s", time.Second},
		{429, "Retry-After: 99999999999999999999999999", time.Duration(longestSeconds) * time.Second},
		{429, "Retry-After: 7\nRetry-After: 9\nRetry-After: x", 9 * time.Second},
		{429, "Date: " + date + "\nRetry-After: Sun, 06 Nov 1994 08:50:37 GMT", time.Minute},
		{429, "Date: " + date + "\nRetry-After: Sunday, 06-Nov-94 08:50:37 GMT", time.Minute}, // RFC 850
		{429, "Date: " + date + "\nRetry-After: Sun, 06 Nov 1994 08:48:37 GMT", time.Second},  // past
		{503, "Date: " + date + "\nRetry-After: Sun, 06 Nov 1994 08:48:37 GMT", 0},
		{429, "Date: " + date + "\nRetry-After: Mon, 06 Nov 1995 08:49:37 GMT", 365 * 24 * time.Hour}, // which MaxBlock cuts
		{429, "Retry-After: 7\nRateLimit: \"api\";r=0;t=9", 9 * time.Second},
		{429, "Retry-After: 9\nRateLimit: \"api\";r=0;t=7", 9 * time.Second},

		{200, `RateLimit: "api";r=0;t=7`, 7 * time.Second},
		{200, `RateLimit: "api";r=1;t=7`, 0},
		{200, `RateLimit: "api";r=0`, 0},
		{200, `RateLimit: "api";t=7`, 0},
		{200, `RateLimit: "a";r=5;t=7, "b";r=0;t=8,"c";r=0;t=3`, 8 * time.Second},
		{200, "RateLimit: \"a\";r=0;t=7\nRateLimit: \"b\";r=0;t=8", 8 * time.Second},
		{200, `RateLimit: "a, \"b\\";pk=:YWI=:; x=?1; y=tok/en*; z="s;r=1"; d=1.25; at=@-5; s=%"f%c3%bc"; on;r=0;t=7  `, 7 * time.Second},
		{200, `RateLimit: "a";r=0;r=3;t=7`, 0}, // the last counts
		{200, `RateLimit: "a";r=-0;t=7`, 7 * time.Second},
		{200, `RateLimit: "a";r=0;t=999999999999999`, time.Duration(longestSeconds) * time.Second},
	} {
		if got := readOf(t, test.status, test.fields); got != test.want {
			t.Errorf("%d %s: %v, want %v", test.status, test.fields, got, test.want)
		}
	}
}

// A field that is not valid is ignored as a whole.
func TestInvalidRateLimit(t *testing.T) {
	const valid = `"a";r=0;t=7`
	if rateLimit(http.Header{"Ratelimit": {valid}}) == 0 {
		t.Fatal("the field is not read")
	}
	for _, field := range []string{
		valid + ",", "," + valid, valid + ", ", valid + `;`, valid + ` "b"`, valid + `, b;r=0`, valid + `, ("b");r=0`,
		valid + ";T=1", valid + ";t", valid + ";t=", valid + ";t=-1", valid + ";t=1.5", valid + `;t="7"`, valid + ";t=?1", valid + ";r=1.0",
		valid + ";t=9999999999999999", valid + ";x=1234567890123.5", valid + ";x=1.", valid + ";x=1.1234", valid + ";x=-", valid + ";x=?2", valid + ";x=:%:", valid + ";x=:YQ==",
		valid + `;x="`, valid + `;x="\a"`, valid + ";x=\"\xc3\xbc\"", valid + ";x=@1.5", valid + ";x=%a", valid + ";x=\x7f", `"a;r=0;t=7`, "limit=5, remaining=0, reset=7", "100", "7;w=1",
		"\t" + valid,
	} {
		if got := rateLimit(http.Header{"Ratelimit": {field}}); got != 0 {
			t.Errorf("%q: %v", field, got)
		}
	}
}

func TestReaders(t *testing.T) {
	now := time.Unix(1372700873, 0)
	for _, test := range []struct {
		read   Reader
		status int
		fields string
		want   time.Duration
	}{
		{GitHub, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1372700933", time.Minute},
		{GitHub, 200, "X-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1372700933", 0},
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1372700933\nRetry-After: 90", 90 * time.Second},
		{GitHub, 403, "Retry-After: 60", time.Minute},
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1372700000", -873 * time.Second},
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 99999999999999999999", time.Duration(longestSeconds) * time.Second},
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: tomorrow", 0},
		{GitHub, 403, "", 0},
		{Discord, 429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1.5", 1500 * time.Millisecond},
		{Discord, 200, "X-RateLimit-Remaining: 1\nX-RateLimit-Reset-After: 1.5", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: NaN", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: -1", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1e300", time.Duration(longestSeconds) * time.Second},
		{Discord, 200, "X-RateLimit-Remaining: 0", 0},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 59\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-requests: 1s\nx-ratelimit-reset-tokens: 6m0s", 6 * time.Minute},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 0\nx-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-requests: 12ms\nx-ratelimit-reset-tokens: 6m0s", 12 * time.Millisecond},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: soon", 0},
	} {
		if got := test.read(responseOf(t, test.status, test.fields), now); max(got, 0) != max(test.want, 0) {
			t.Errorf("%d %s: %v, want %v", test.status, test.fields, got, test.want)
		}
	}
}

func readOf(t testing.TB, status int, fields string) time.Duration {
	t.Helper()
	return (&Transport{}).read(responseOf(t, status, fields))
}

func responseOf(t testing.TB, status int, fields string) *http.Response {
	t.Helper()
	h := make(http.Header)
	for line := range strings.Lines(fields) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok {
			t.Fatalf("a bad line: %q", line)
		}
		h.Add(name, value)
	}
	return &http.Response{StatusCode: status, Header: h}
}

// Whatever a server writes, nothing breaks, and a valid item counts if all others
// are valid.
func FuzzRateLimit(f *testing.F) {
	for _, seed := range []string{`"a";r=0;t=7`, `"a";r=1, "b"`, `"\"";x=:YQ==:;y=?0;z=*t`, `x=1`, "\t,", `"a";d=1.5;at=@1;s=%"x"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, field string) {
		got := rateLimit(http.Header{"Ratelimit": {field}})
		if got < 0 || got > time.Duration(longestSeconds)*time.Second {
			t.Errorf("%v", got)
		}
		const more = time.Duration(longestSeconds) * time.Second
		if both := rateLimit(http.Header{"Ratelimit": {field, fmt.Sprintf(`"more";r=0;t=%d`, longestSeconds)}}); got > 0 && both != more {
			t.Errorf("%v, and with an item more %v", got, both)
		}
	})
}
