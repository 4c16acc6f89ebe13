package step_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain sets the number of schedules that properties are tried with, unless a flag of
// the command line does; TestModel tries more. A failure prints the seed that repeats it
// and leaves no file.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "100", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
