package engine

import (
	"fmt"
	"strings"
)

// Faults are what is wrong in one place of a Config: a line of the error.
type Faults struct {
	Where string
	what  []string
}

// Add adds a fault, if it is one.
func (f *Faults) Add(wrong bool, format string, args ...any) {
	if wrong {
		f.what = append(f.what, fmt.Sprintf(format, args...))
	}
}

// Err returns the line, or nil.
func (f *Faults) Err() error {
	if len(f.what) == 0 {
		return nil
	}
	return fmt.Errorf("headgate: %s: %s", f.Where, strings.Join(f.what, "; "))
}
