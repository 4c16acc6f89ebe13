package settle_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/bubble"
	"github.com/headgate/headgate/internal/old/settle"
)

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// While files change, none of their states is returned. What was there before costs no time.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	bubble.Test(t, func(t *testing.T) {
		read := func(before []settle.File) (text string, took time.Duration, err error) {
			begin := time.Now()
			files, err := settle.Read(t.Context(), before, 9, func() ([]string, error) { return []string{a, b}, nil })
			for _, f := range files {
				text += filepath.Base(f.Name) + string(f.Text)
			}
			return text, time.Since(begin), err
		}
		if _, _, err := read(nil); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		put(t, a, "1")
		go func() { // b is there after the first read, and whole after the second
			time.Sleep(20 * time.Millisecond)
			put(t, b, "")
			time.Sleep(50 * time.Millisecond)
			put(t, b, "1")
		}()
		if text, took, err := read(nil); text != "a1b1" || took != 150*time.Millisecond || err != nil {
			t.Error(text, took, err)
		}
		before := []settle.File{{Name: a, Text: []byte("1")}, {Name: b, Text: []byte("1")}}
		if text, took, err := read(before); text != "a1b1" || took != 0 || err != nil {
			t.Error(text, took, err)
		}
		put(t, a, "2")
		go func() { time.Sleep(time.Millisecond); put(t, b, "2") }()
		if text, _, err := read(before); text != "a2b2" || err != nil {
			t.Error(text, err)
		}
		go func() { // never at the instant of a read, which would find a file that is being written
			time.Sleep(5 * time.Millisecond)
			for i := range 50 {
				put(t, b, strings.Repeat("x", i%3))
				time.Sleep(30 * time.Millisecond)
			}
		}()
		if text, _, err := read(before); err == nil || !strings.Contains(err.Error(), "changes all the time") {
			t.Error(text, err)
		}
		time.Sleep(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := settle.Read(ctx, nil, 9, func() ([]string, error) { return []string{a}, nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A file has the bound, whatever size it tells.
func TestReadIsBounded(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a")
	put(t, name, "0123456789")
	for _, test := range []struct {
		name  string
		limit int64
		want  string
	}{
		{name, 10, ""}, {name, 9, "has 10 bytes, more than 9"}, {"/proc/self/status", 9, "has more than 9 bytes"},
	} {
		if _, err := os.Stat(test.name); err != nil {
			continue // that one is of Linux
		}
		_, err := settle.Read(t.Context(), nil, test.limit, func() ([]string, error) { return []string{test.name}, nil })
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
