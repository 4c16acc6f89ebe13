package pages

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	for _, html := range []string{
		"<style>\nb { color: red; }\n</style><b>hello</b>",
		"<style></style><script>alert</script>",
		"<style>\r\n</style><script>\r\nalert\r\n</script>",
	} {
		w := httptest.NewRecorder()
		Write(w, html)
		body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
		if !strings.HasPrefix(body, "<style>\n:root {") || strings.Contains(body, "\r") {
			t.Errorf("%.100q", body)
		}
		for _, want := range []string{"default-src 'none'", "script-src " + source(body, "script"), "style-src " + source(body, "style")} {
			if !strings.Contains(policy, want+";") {
				t.Errorf("no %s: %s", want, policy)
			}
		}
		if v := w.Header().Get("Content-Type"); v != "text/html; charset=utf-8" {
			t.Error(v)
		}
	}
}

func TestSource(t *testing.T) {
	// printf alert | openssl dgst -sha256 -binary | base64
	const want = "'sha256-35BQWN1npAn++BSA6B5HNlcrDttNf7mHxpXNB+Jg7IE='"
	if got := source("<p>a</p><script>alert</script><p>b</p>", "script"); got != want {
		t.Error(got)
	}
	if got := source("<p>a</p>", "script"); got != "'none'" {
		t.Error(got)
	}
}
