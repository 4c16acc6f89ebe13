package limits

import (
	"context"
	"fmt"
	"sync"

	"github.com/headgate/headgate/internal/old/settle"
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

// SourceFunc is a function as a [Source].
type SourceFunc func(ctx context.Context) ([]byte, error)

// Load calls f.
func (f SourceFunc) Load(ctx context.Context) ([]byte, error) { return f(ctx) }

// Bytes returns a source of a text that never changes, such as one that the program embeds.
func Bytes(text []byte) Source {
	return SourceFunc(func(context.Context) ([]byte, error) { return text, nil })
}

// File returns a source of a file. The file is read each time; its time of change does not matter.
// So symbolic links may be swapped, as Kubernetes does where it mounts a ConfigMap. To replace the
// document, rename a new file over the old one. A file may be written in place all the same. Then
// Load waits until two reads, 50 ms apart, are equal. But a writer that pauses for longer can be
// read in the middle.
func File(path string) Source { return &file{path: path} }

type file struct {
	path string

	mu   sync.Mutex
	read []settle.File // what was returned last
}

// Load implements [Source].
func (f *file) Load(ctx context.Context) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	read, err := settle.Read(ctx, f.read, MaxBytes, func() ([]string, error) { return []string{f.path}, nil })
	if err != nil {
		return nil, fmt.Errorf("headgate: limits: %w", err)
	}
	f.read = read
	return read[0].Text, nil
}
