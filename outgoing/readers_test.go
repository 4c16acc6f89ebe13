package outgoing

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
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
		{420, "", time.Second},
		{420, "Retry-After: 7", 7 * time.Second},
		{404, "", 0},
		{404, "Retry-After: 7", 7 * time.Second},
		{503, "Retry-After-Ms: 7000", 0}, // which a Reader has to know
		{429, "Retry-After: 7", 7 * time.Second},
		{429, "Retry-After: 0", time.Second}, // at once is no help
		{429, "", time.Second},
		{429, "Retry-After: -7", time.Second},
		{429, "Retry-After: +7", time.Second},
		{429, "Retry-After: 1.5", 2 * time.Second}, // a shorter wait than asked is never right
		{503, "Retry-After: 299.997", 300 * time.Second},
		{503, "Retry-After: 0.0001", time.Second},
		{503, "Retry-After: 7.000", 7 * time.Second},
		{503, "Retry-After: 7.", 0},
		{503, "Retry-After: .7", 0},
		{503, "Retry-After: 7.5.5", 0},
		{503, "Retry-After: 7.5s", 0},
		{503, "Retry-After: 9223372036854775807.9", time.Duration(longestSeconds+1) * time.Second},
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
		"\t" + valid, valid + strings.Repeat(", "+valid, longestField/10),
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
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 99999999999999999999", time.Unix(longestSeconds, 0).Sub(now)},
		{GitHub, 403, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: tomorrow", time.Minute},
		{GitHub, 403, "", time.Minute},
		{GitHub, 403, "X-RateLimit-Remaining: 4999\nX-RateLimit-Reset: 1372700933", 0},
		{GitHub, 429, "", time.Minute},
		{GitHub, 429, "X-RateLimit-Remaining: 4999\nX-RateLimit-Reset: 1372703000", time.Minute},
		{GitHub, 429, "X-RateLimit-Remaining: 4999\nRetry-After: 5", 5 * time.Second},
		{GitHub, 200, "", 0},
		{GitHub, 404, "", 0},
		{Discord, 429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1.5", 1500 * time.Millisecond},
		{Discord, 200, "X-RateLimit-Remaining: 1\nX-RateLimit-Reset-After: 1.5", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: NaN", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: -1", 0},
		{Discord, 200, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 1e300", time.Duration(longestSeconds) * time.Second},
		{Discord, 200, "X-RateLimit-Remaining: 0", 0},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 59\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-requests: 1s\nx-ratelimit-reset-tokens: 6m0s", 6 * time.Minute},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 0\nx-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-requests: 12ms\nx-ratelimit-reset-tokens: 6m0s", 12 * time.Millisecond},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: soon", 0},
		{OpenAI, 200, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 45", 45 * time.Second},
		{OpenAI, 200, "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 44.2", 45 * time.Second},
		{OpenAI, 429, "retry-after-ms: 20000", 20 * time.Second},
		{OpenAI, 503, "retry-after-ms: 1999.2", 2 * time.Second},
		{OpenAI, 429, "retry-after-ms: soon", 0},
		{OpenAI, 200, "retry-after-ms: 20000", 0},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 2013-07-01T17:48:53Z", time.Minute},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 1\nanthropic-ratelimit-requests-reset: 2013-07-01T17:48:53Z", 0},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 2013-07-01T17:47:52Z", -time.Second},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 1372700933", 0},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 0", 0},
		{Anthropic, 429, "anthropic-ratelimit-tokens-remaining: 0\nanthropic-ratelimit-tokens-reset: 2013-07-01T19:47:54.5+02:00", 1500 * time.Millisecond},
		{Anthropic, 200, "anthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 2013-07-01T17:48:53Z\n" +
			"anthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2013-07-01T17:49:53Z\n" +
			"anthropic-ratelimit-output-tokens-remaining: 9\nanthropic-ratelimit-output-tokens-reset: 2013-07-01T17:50:53Z", 2 * time.Minute},
		{Anthropic, 200, "anthropic-ratelimit-output-tokens-remaining: 0\nanthropic-ratelimit-output-tokens-reset: 2013-07-01T17:50:53Z", 3 * time.Minute},
	} {
		if got := test.read(responseOf(t, test.status, test.fields), now); max(got, 0) != max(test.want, 0) {
			t.Errorf("%d %s: %v, want %v", test.status, test.fields, got, test.want)
		}
	}
}

// However far away a time is, nothing overflows: it is as long as there is, or over.
func TestAbsurdTimes(t *testing.T) {
	const (
		most, least  = "9223372036854775807", "-9223372036854775808"
		past, future = "Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"
	)
	reads := []Reader{GitHub, Discord, OpenAI, Anthropic, func(*http.Response, time.Time) time.Duration { return -1 << 63 }}
	read := func(date, field string) time.Duration {
		r := responseOf(t, 429, "Date: "+date+"\n"+field+"\nX-RateLimit-Remaining: 0\nX-RateLimit-Remaining-Requests: 0\n"+
			"Anthropic-RateLimit-Requests-Remaining: 0")
		wait, _ := (&Transport{Reads: reads}).read(r)
		return wait
	}
	for _, date := range []string{past, "Sun, 06 Nov 1994 08:49:37 GMT", "x"} {
		for _, field := range []string{
			"Retry-After: " + most, "Retry-After: " + future, "X-RateLimit-Reset: " + most, "X-RateLimit-Reset-After: " + most,
			"X-RateLimit-Reset-After: 1e300", "X-RateLimit-Reset-After: Inf", "X-RateLimit-Reset-Requests: 2562047h47m16.854775807s", "X-RateLimit-Reset-Requests: " + most, "Retry-After-Ms: " + most, `RateLimit: "a";r=0;t=999999999999999`,
			"Anthropic-RateLimit-Requests-Reset: 9999-12-31T23:59:59Z",
		} {
			if got := read(date, field); got < 200*365*24*time.Hour {
				t.Errorf("at %s, %s: %v", date, field, got)
			}
		}
	}
	for _, date := range []string{future, "x"} {
		for _, field := range []string{
			"Retry-After: " + least, "Retry-After: " + past, "X-RateLimit-Reset: 0", "X-RateLimit-Reset: " + least, "X-RateLimit-Reset-After: " + least,
			"X-RateLimit-Reset-After: -Inf", "X-RateLimit-Reset-Requests: -2562047h47m16.854775808s", `RateLimit: "a";r=0;t=-999999999999999`,
			"Anthropic-RateLimit-Requests-Reset: 0000-01-01T00:00:00Z",
		} {
			if got := read(date, field); got < withoutTime || got > time.Minute {
				t.Errorf("at %s, %s: %v", date, field, got)
			}
		}
	}
}

func readOf(t testing.TB, status int, fields string) time.Duration {
	t.Helper()
	wait, _ := (&Transport{}).read(responseOf(t, status, fields))
	return wait
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
	for _, seed := range []string{`"a";r=0;t=7`, `"a";r=1, "b"`, `"\"";x=:YQ==:;y=?0;z=*t`, `x=1`, "\t,", `"a";d=1.5;at=@1;s=%"x"`, "limit=1, remaining=0, reset=7;x"} {
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

// The URLs of a group have one key, which no other group has.
func TestOrigins(t *testing.T) {
	seen := make(map[string]string) // a URL, by key
	for want, urls := range map[string][]string{
		"http://a":                     {"http://a", "http://A:80/x", "http://a:/", "http://a.:080/", "http://user:password@a/"},
		"https://a":                    {"https://a", "https://a:443/", "HTTPS://A."},
		"http://a:443":                 {"http://a:443"},
		"https://a:80":                 {"https://a:80"},
		"http://a:8080":                {"http://a:8080", "http://a:08080"},
		"https://a:8080":               {"https://a:8080"},
		"http://a:0":                   {"http://a:0"},
		"http://a:99999":               {"http://a:99999"}, // no port, but no other's either
		"http://b.a":                   {"http://b.a"},
		"http://1.2.3.4":               {"http://1.2.3.4", "http://[::ffff:1.2.3.4]", "http://[::FFFF:102:304]:80"},
		"http://[2001:db8::1]:8080":    {"http://[2001:db8::1]:8080", "http://[2001:DB8:0:0::1]:8080"},
		"http://[2001:db8::1:8080]":    {"http://[2001:db8::1:8080]", "http://[2001:db8::1:8080]:80"},
		"https://[2001:db8::1:8080]":   {"https://[2001:db8::1:8080]"},
		"http://[fe80::1%25Eth0]":      {"http://[fe80::1%2525Eth0]"},
		"http://[fe80::1%Eth0]":        {"http://[fe80::1%25Eth0]", "http://[FE80::1%25Eth0]:80"},
		"http://[fe80::1%eth0]":        {"http://[fe80::1%25eth0]"},
		"http://b\u00fccher.example":   {"http://b\u00fccher.example", "http://B\u00fcCHER.example."},
		"http://xn--bcher-kva.example": {"http://xn--bcher-kva.example"},
		"http://.":                     {"http://."},
		"http://:81":                   {"http://:81"},
	} {
		for _, s := range urls {
			key, err := origin(&http.Request{URL: parse(t, s)})
			if other := seen[key]; err != nil || key != want || other != "" && other != want {
				t.Errorf("%s: %q, %v, want %q", s, key, err, want)
			}
			seen[key] = want
		}
	}
	for _, u := range []*url.URL{nil, {}, {Scheme: "http", Opaque: "a"}} {
		if key, err := origin(&http.Request{URL: u}); err == nil {
			t.Errorf("%v: %q", u, key)
		}
	}
}

func parse(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// Two servers never have one key, whatever their names, which here need not be valid, and one
// server has one, however its URL is written.
func FuzzOrigins(f *testing.F) {
	f.Add("2001:db8::1", "2001:db8::1:8080", uint16(8080), uint16(80), false, false)
	f.Add("a", "A", uint16(80), uint16(443), false, true)
	f.Add("a:80", "a", uint16(80), uint16(80), false, false)
	f.Add("\xff", "\xfe", uint16(1), uint16(1), true, true)
	f.Add("[a", "a]", uint16(1), uint16(1), true, true)
	f.Add("fe80::1%a]:81", "fe80::1%a", uint16(80), uint16(81), false, false)
	f.Add("\u212a", "k", uint16(80), uint16(80), false, false)
	f.Fuzz(func(t *testing.T, one, two string, portOne, portTwo uint16, tlsOne, tlsTwo bool) {
		type server struct {
			scheme, host string
			port         uint16
		}
		of := func(host string, port uint16, tls bool) (s server, key string) {
			u := &url.URL{Scheme: "http", Host: fmt.Sprintf("[%s]:%d", host, port)}
			if tls {
				u.Scheme = "https"
			}
			s = server{u.Scheme, strings.TrimSuffix(asciiLower(host), "."), port}
			if host == "." {
				s.host = host
			}
			if ip, err := netip.ParseAddr(host); err == nil {
				s.host = ip.Unmap().String()
			}
			key, err := origin(&http.Request{URL: u})
			if err != nil {
				t.Fatal(err)
			}
			if port == 80 && !tls || port == 443 && tls {
				u.Host = "[" + host + "]"
				if short, _ := origin(&http.Request{URL: u}); short != key {
					t.Errorf("%q without its port: %q, %q", host, short, key)
				}
			}
			return s, key
		}
		a, keyA := of(one, portOne, tlsOne)
		b, keyB := of(two, portTwo, tlsTwo)
		if (a == b) != (keyA == keyB) {
			t.Errorf("%v has %q, %v has %q", a, keyA, b, keyB)
		}
	})
}
