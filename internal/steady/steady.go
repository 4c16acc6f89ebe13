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
// read before, unless that is nil, it returns that slice at once: callers ask again and again, and mostly nothing has
// changed. A fault counts if two reads in a row have one: a file may be gone while it is replaced.
//
// After 20 reads that differ, which take a second, the error says so. If the context ends, it is that of the context. A
// writer that pauses for longer than 50 ms can be read in the middle: so documents of limits have a last line that
// tells.
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
		// A read that failed once is compared with nothing: the next must be right twice.
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

// File reads a regular file as it is. A pipe would wait for a writer, and a device may have no end. The size is looked
// at first, so that a file of gigabytes takes no memory. Links are followed, as Kubernetes mounts a ConfigMap.
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
