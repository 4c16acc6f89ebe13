package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/nethttp"
)

const (
	maxPrompt     = 1 << 10 // bytes
	defaultAnswer = 200     // tokens
	maxAnswer     = 600     // with the longest prompt, no more than the limit
)

// estimate is what a request reserves: all that it can come to. It is computed without
// reading the body, and from numbers that the server keeps the client to.
func estimate(r *http.Request) int64 {
	size := r.ContentLength
	if size < 0 || size > maxPrompt {
		size = maxPrompt // the handler reads no more
	}
	return promptTokens(size) + answerTokens(r)
}

// promptTokens counts three bytes as a token, and begins no token twice.
func promptTokens(size int64) int64 { return (size + 2) / 3 }

// answerTokens is how long the answer may be.
func answerTokens(r *http.Request) int64 {
	n, err := strconv.ParseInt(r.URL.Query().Get("max_tokens"), 10, 64)
	if err != nil || n < 1 {
		return defaultAnswer
	}
	return min(n, maxAnswer)
}

func chat(w http.ResponseWriter, r *http.Request) {
	used := int64(0)
	defer func() { nethttp.SetCost(r.Context(), "tokens", used) }()

	prompt, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPrompt))
	if err != nil {
		http.Error(w, "400 the prompt cannot be read, or has more than 1 KiB", http.StatusBadRequest)
		return
	}
	used += promptTokens(int64(len(prompt)))
	var answer []string
	for word := range model(r.Context(), string(prompt)) {
		if int64(len(answer)) == answerTokens(r) {
			break
		}
		answer = append(answer, word)
		used++
	}

	text, err := json.Marshal(struct {
		Answer   string `json:"answer"`
		Reserved int64  `json:"reserved"`
		Used     int64  `json:"used"`
	}{strings.Join(answer, " "), estimate(r), used})
	if err != nil {
		http.Error(w, "500 the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(append(text, '\n'))
}

// model yields an answer word by word, each of which counts as a token, and stops when
// the client goes away. It is no great thinker: asked for everything, it never ends.
func model(ctx context.Context, prompt string) func(func(string) bool) {
	words := strings.Fields("You said: " + prompt + " . To that I say: what is asked in haste is answered at the rate that remains, " +
		"and whoever waits is told for how long.")
	return func(yield func(string) bool) {
		for again := true; again; again = strings.Contains(prompt, "everything") {
			for _, word := range words {
				if ctx.Err() != nil || !yield(word) {
					return
				}
			}
		}
	}
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "hello\n")
}

//go:embed page.html
var pageHTML string

// page serves page.html, whose own script may run, talk to this server, and no more.
func page(w http.ResponseWriter, _ *http.Request) {
	html := strings.ReplaceAll(pageHTML, "\r\n", "\n") // browsers hash what they have normalised
	_, script, _ := strings.Cut(html, "<script>")
	script, _, _ = strings.Cut(script, "</script>")
	sum := sha256.Sum256([]byte(script))
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; connect-src 'self'; img-src data:; script-src 'sha256-"+
		base64.StdEncoding.EncodeToString(sum[:])+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	io.WriteString(w, html)
}
