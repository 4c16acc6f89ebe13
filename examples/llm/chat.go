package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/headgate/headgate/examples/internal/pages"
	"github.com/headgate/headgate/nethttp"
)

const (
	maxPrompt     = 1 << 10 // bytes
	defaultAnswer = 200     // tokens
	maxAnswer     = 600     // with the longest prompt, no more than the limit
)

// estimate returns what a request reserves: the most that it can cost. It does not read the
// body, and uses only numbers that the server enforces.
func estimate(r *http.Request) int64 {
	size := r.ContentLength
	if size < 0 || size > maxPrompt {
		size = maxPrompt // the handler reads no more
	}
	return promptTokens(size) + answerTokens(r)
}

// promptTokens counts three bytes as a token, rounded up.
func promptTokens(size int64) int64 { return (size + 2) / 3 }

// answerTokens returns the most tokens that the answer may have.
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
		http.Error(w, "400 the prompt cannot be read or exceeds 1 KiB", http.StatusBadRequest)
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

// model yields an answer word by word, each of which counts as a token, and stops when the
// client disconnects. A prompt with "everything" gets an answer that never ends.
func model(ctx context.Context, prompt string) func(func(string) bool) {
	words := strings.Fields("You said: " + prompt + " . A rate limit protects a service from too many requests: " +
		"each client gets its fair share, and a refusal says when to try again.")
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

func page(w http.ResponseWriter, _ *http.Request) { pages.Write(w, pageHTML) }
