package repotest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What go.mod requires is forced on everyone who imports the module: each line says why it
// requires no older version.
func TestRequirementsHaveReasons(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^(?:require )?\s*(\S+\.\S+/\S+) v\S+(.*)$`)
	found := required.FindAllStringSubmatch(string(text), -1)
	direct := 0
	for _, line := range found {
		if reason := strings.TrimSpace(line[2]); reason == "// indirect" {
			continue
		} else if direct++; !strings.HasPrefix(reason, "// ") {
			t.Errorf("%s: no reason", line[1])
		}
	}
	if direct < 5 {
		t.Errorf("%d direct requirements were found", direct)
	}
}
