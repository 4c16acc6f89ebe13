// Package steady reads files that somebody may be writing.
package steady

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/headgate/headgate/internal/yamltree"
)

// Read reads until two reads, 50 ms apart, are equal: somebody may be writing what is read. If it is equal to what was
// read before, unless that is nil, it returns that at once. A fault counts if two reads in a row have one: a file may
// be gone while it is replaced.
func Read[T ~[]E, E any](ctx context.Context, before T, read func() (T, error)) (T, error) {
	const apart, tries = 50 * time.Millisecond, 20
	found, err := read()
	for range tries {
		if err == nil && before != nil && reflect.DeepEqual(found, before) {
			return before, nil
		}
		select {
		case <-time.After(apart):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		again, errAgain := read()
		switch {
		case err != nil && errAgain != nil:
			return nil, errAgain
		case err == nil && errAgain == nil && reflect.DeepEqual(found, again):
			return again, nil
		}
		found = again
		err = errAgain
	}
	return nil, errors.New("the text changes all the time")
}

// File reads a regular file as it is.
func File(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() > yamltree.MaxBytes:
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, info.Size(), yamltree.MaxBytes)
	}
	return os.ReadFile(name)
}
