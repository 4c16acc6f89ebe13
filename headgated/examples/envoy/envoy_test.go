package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest/proctest"
)

func TestMain(m *testing.M) {
	proctest.Main(m, proctest.Funcs{"envoy": func([]string) error {
		main()
		return nil
	}})
}

// send sends a request to the page.
func send(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// Envoy, and what stands in for it, let pass what the limits say, and give clients their fields.
func TestExample(t *testing.T) {
	for name, path := range map[string]string{"a stand-in for Envoy": "", "Envoy": "../../../.bin/envoy/bin/envoy"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(path); path != "" && err != nil {
				if os.Getenv("HEADGATE_REQUIRE_PROXIES") == "1" {
					t.Fatal(err)
				}
				t.Skip("there is no Envoy: make tools installs it")
			}
			line := proctest.Start(t, "envoy", "-addr", "127.0.0.1:0", "-envoy", path).Line()
			page := strings.TrimSuffix(line[strings.LastIndex(line, "http://"):], "/")
			if r, body := send(t, "GET", page+"/"); r.StatusCode != 200 || !strings.Contains(body, "<h1>"+name+" asks headgated</h1>") {
				t.Errorf("%d %s", r.StatusCode, body)
			}
			codes := make(map[int]int)
			for range 100 {
				r, body := send(t, "POST", page+"/ask?user=anna")
				if codes[r.StatusCode]++; r.StatusCode == 200 && body != "hello\n" || r.StatusCode == 429 && r.Header.Get("Retry-After") == "" ||
					!strings.Contains(r.Header.Get("RateLimit-Policy"), `"front.everyone";q=10;`) {
					t.Errorf("%d %v %s", r.StatusCode, r.Header, body)
				}
			}
			if codes[200] < 10 || codes[429] == 0 || codes[200]+codes[429] != 100 {
				t.Errorf("%v", codes)
			}
			if r, body := send(t, "GET", page+"/debug/headgate/"); r.StatusCode != 200 || !strings.Contains(body, "front.everyone") {
				t.Errorf("%d %s", r.StatusCode, body)
			}
		})
	}
}
