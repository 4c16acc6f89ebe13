package core_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain sets how often properties are tried, unless a flag of the command line does. A
// failure prints the seed that repeats it and leaves no file.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "1000", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
