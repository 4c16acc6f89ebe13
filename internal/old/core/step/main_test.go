package step_test

import (
	"flag"
	"os"
	"testing"
)

// checks is the number of schedules that properties are tried with, for each set of numbers
// or family of them.
const checks = "100"

// TestMain sets that number, unless a flag of the command line does. A failure prints the seed that repeats it
// and leaves no file.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": checks, "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
