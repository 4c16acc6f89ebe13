package redisstore

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/redistest"
)

// Check runs each command that a script or a call uses: the words of the sources that are commands
// of the server are these.
func TestCheckRunsAllCommands(t *testing.T) {
	server := redistest.Start(t)
	var sources []string
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			sources = append(sources, string(text))
		}
	}
	quoted, method := regexp.MustCompile(`'([A-Z]{3,})'`), regexp.MustCompile(`\b(?:client|pipe|c)\.([A-Z]\w+)\(ctx`)
	in := func(words *regexp.Regexp, texts ...string) []string {
		var found []string
		for _, text := range texts {
			for _, m := range words.FindAllStringSubmatch(text, -1) {
				word := strings.ToUpper(m[1])
				if reply, err := server.Do("COMMAND", "INFO", word); err != nil {
					t.Fatal(err)
				} else if all, _ := reply.([]any); len(all) == 1 && all[0] != nil && word != "EXEC" && !slices.Contains(found, word) {
					found = append(found, word)
				}
			}
		}
		slices.Sort(found)
		return found
	}
	tried := func(commands string, others ...string) []string {
		for command := range strings.SplitSeq(commands, "|") {
			name, _, _ := strings.Cut(command, " ")
			others = append(others, name)
		}
		slices.Sort(others)
		return slices.Compact(others)
	}
	for what, test := range map[string]struct{ used, tried []string }{
		"limits": {in(quoted, scriptSource, resetScript), tried(limitCommands)},
		"calls":  {in(method, sources...), []string{"INFO", "TIME"}},
		"permissions": {
			tried(limitCommands, "EVAL", "EVALSHA", "INFO"),
			tried(strings.ReplaceAll(strings.ToUpper(permissions), " ", "|")),
		},
	} {
		for i, name := range test.tried {
			test.tried[i] = strings.TrimPrefix(name, "+")
		}
		if !slices.Equal(test.used, test.tried) {
			t.Errorf("%s use\n%v, tried are\n%v", what, test.used, test.tried)
		}
	}
}
