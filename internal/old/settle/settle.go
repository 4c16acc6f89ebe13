// Package settle reads files that somebody may be writing.
package settle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	apart = 50 * time.Millisecond // two reads
	tries = 20
)

// A File is a file and its text.
type File struct {
	Name string
	Text []byte
}

// Equal reports whether files have the same names and texts.
func Equal(a, b []File) bool {
	return slices.EqualFunc(a, b, func(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Text, b.Text) })
}

// Read reads the files that list names, until two reads of all, 50 ms apart, are equal. If they are equal to those
// before, which may be nil, it returns these at once. They must be regular files of at most limit bytes. A fault
// counts if two reads in a row have one: a file may be gone while it is replaced.
func Read(ctx context.Context, before []File, limit int64, list func() ([]string, error)) ([]File, error) {
	files, err := readAll(limit, list)
	for range tries {
		if err == nil && before != nil && Equal(files, before) {
			return before, nil
		}
		if err := pause(ctx, apart); err != nil {
			return nil, err
		}
		again, errAgain := readAll(limit, list)
		switch {
		case err != nil && errAgain != nil:
			return nil, errAgain
		case err == nil && errAgain == nil && Equal(files, again):
			return again, nil
		}
		files, err = again, errAgain
	}
	return nil, errors.New("the text changes all the time")
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func readAll(limit int64, list func() ([]string, error)) ([]File, error) {
	names, err := list()
	if err != nil {
		return nil, err
	}
	files := make([]File, len(names))
	for i, name := range names {
		text, err := read(name, limit)
		if err != nil {
			return nil, err
		}
		files[i] = File{name, text}
	}
	return files, nil
}

// read reads a file. It blocks at none: the flag is for opening a named pipe that nobody writes to.
func read(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, info.Size(), limit)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return text, err
}
