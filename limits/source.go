package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A Source has the text of a document. It is safe for concurrent use.
//
// Whoever can change the document can switch limits off.
type Source interface {
	// Load returns the text. A book calls it at the interval Every of [Config]. So a source whose
	// text has not changed should return the same slice as before, which costs nothing to compare.
	// The book does not change it, nor may the source. An error means that the source is away: the
	// limits stay as they are.
	Load(ctx context.Context) ([]byte, error)
}

// A Waker is a source that knows when its text may have changed.
type Waker interface {
	Source

	// Wake calls wake whenever the text may have changed, until ctx is done, and then
	// returns. Text that changes without a call is found by the next Load.
	Wake(ctx context.Context, wake func())
}

// A Listener is a source that is told whether its documents were applied.
type Listener interface {
	Source

	// Loaded is called after each Load with the state of the book, for at most
	// [Config].Timeout.
	Loaded(ctx context.Context, s State)
}

// A Sealed source has documents whose keys were hashed before they got there.
type Sealed interface {
	Source

	// SecretID returns the [SecretID] of the secret of the hashed keys in the text that Load
	// returned last. It returns nothing if that is not known. A book with another Secret refuses
	// the document, because it would find none of the keys.
	SecretID() string
}

// SourceFunc is a function as a [Source].
type SourceFunc func(ctx context.Context) ([]byte, error)

// Load calls f.
func (f SourceFunc) Load(ctx context.Context) ([]byte, error) { return f(ctx) }

// Bytes returns a source of a text that never changes, such as one that the program embeds.
func Bytes(text []byte) Source {
	return SourceFunc(func(context.Context) ([]byte, error) { return text, nil })
}

// Limits of a file that is read while somebody may write it.
const (
	settleTime  = 50 * time.Millisecond
	settleTries = 20
)

// File returns a source of a file. The file is read each time; its time of change does not matter.
// So symbolic links may be swapped, as Kubernetes does where it mounts a ConfigMap. To replace the
// document, rename a new file over the old one. A file may be written in place all the same. Then
// Load waits until two reads, 50 ms apart, are equal. But a writer that pauses for longer can be
// read in the middle.
func File(path string) Source { return &file{path: path} }

type file struct {
	path string

	mu   sync.Mutex
	text []byte // that was returned last
}

// Load implements [Source].
func (f *file) Load(ctx context.Context) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text, err := readFile(f.path)
	if err != nil {
		return nil, err
	}
	for range settleTries {
		if f.text != nil && bytes.Equal(text, f.text) {
			return f.text, nil
		}
		if err := pause(ctx, settleTime); err != nil {
			return nil, err
		}
		again, err := readFile(f.path)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(text, again) {
			f.text = text
			return text, nil
		}
		text = again
	}
	return nil, errors.New("headgate: limits: the file changes all the time")
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

// readFile reads a file of at most [MaxBytes], and nothing that would block.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("headgate: limits: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("headgate: limits: %s is not a regular file", path)
	case info.Size() > MaxBytes:
		return nil, fmt.Errorf("headgate: limits: %s has %d bytes, more than %d", path, info.Size(), MaxBytes)
	}
	f, err := os.Open(path) //nolint:gosec // the program names the file
	if err != nil {
		return nil, fmt.Errorf("headgate: limits: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("headgate: limits: %w", err)
	}
	return text, nil
}
