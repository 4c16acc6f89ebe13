package redisstore

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/core"
	"github.com/headgate/headgate/core/step"
)

var update = flag.Bool("update", false, "write the assembled scripts to testdata")

// What Redis runs can be read in testdata: the main script, and some of the flat ones, for
// the others differ from them by fragments only. To renew them:
//
//	go test ./core/redisstore -run TestAssembledScripts -update
func TestAssembledScripts(t *testing.T) {
	s := away(t, Config{})
	var every algorithmSet
	for _, a := range scripted {
		every = every.with(a)
	}
	scripts := map[string]string{"main": mainSource(every)}
	flat := func(name string, ps ...core.Policy) {
		scripts["flat_"+name] = flatSource(newLimiter(t, s, "api", ps...).Cells())
	}
	all := append(somePolicies(5, 10), core.SlidingLog(core.PerHour(100)).Named("long"))
	for _, p := range all {
		flat(p.Name(), p)
		if p.Name() != "apart" && p.Name() != "bucket" { // which cannot count refusals
			flat(p.Name()+"_denied", p.CountDenied())
		}
	}
	flat("bucket_sliding", all[1], all[3])
	for name, source := range scripts {
		if _, body, _ := strings.Cut(source, "-- rules for them.\n"); strings.Contains(strings.ReplaceAll(body, "--@", ""), "@") {
			t.Errorf("%s: something that begins with @ was not filled in", name)
		}
	}
	for _, name := range []string{"main", "flat_bucket", "flat_log_denied", "flat_bucket_sliding"} {
		file := filepath.Join("testdata", name+".lua")
		if *update {
			if err := os.WriteFile(file, []byte(scripts[name]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(file); err != nil || string(want) != scripts[name] {
			t.Errorf("%s is not current (%v): run this test with -update", file, err)
		}
	}
}

var (
	luaFunction = regexp.MustCompile(`(?m)^  function twin\.(\w+)\((.*)\)$`)
	luaLocal    = regexp.MustCompile(`local ([\w, ]+?) *(?:=|\n|$)`)
	luaHelper   = regexp.MustCompile(`(?m)^(?:local )?(?:function )?(\w+)(?:\(| =)`)
)

// withoutFunctions removes local functions, which end with an indentation as they begin.
func withoutFunctions(text string) string {
	var rest strings.Builder
	end := ""
	for line := range strings.Lines(text) {
		if indent, _, found := strings.Cut(line, "local function "); found && end == "" {
			end = indent + "end\n"
		}
		if end == "" {
			rest.WriteString(line)
		}
		if line == end {
			end = ""
		}
	}
	return rest.String()
}

// declares returns the names that a fragment declares.
func declares(text string) (names []string) {
	for _, found := range luaLocal.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Split(found[1], ", ")...)
	}
	return names
}

// Each twin obeys the rules at the head of flat.go, by their numbers.
func TestTwinsObeyTheRules(t *testing.T) {
	helpers := make(map[string]step.Algorithm)
	for _, found := range luaHelper.FindAllStringSubmatch(prelude+save, -1) {
		helpers[found[1]] = 0
	}
	for _, a := range scripted {
		source := a.Twin()
		twin := parseTwin(a.String(), source) // rule 1

		_, list, _ := strings.Cut(source, "--@constants ")
		list, _, _ = strings.Cut(list, "\n")
		names := declares(twin.constants)
		if strings.Join(names, ", ") != list || strings.ToUpper(list) != list {
			t.Errorf("%v, rule 2: declares %q, lists %s", a, names, list)
		}

		parameters := make(map[string][]string)
		for _, found := range luaFunction.FindAllStringSubmatch(source, -1) {
			parameters[found[1]] = strings.Split(found[2], ", ")
		}
		_, results, _ := strings.Cut(source, "--@admits\n")
		results, _, _ = strings.Cut(results, "\n  end\n")
		results = results[strings.LastIndex(results, "return ")+len("return "):]
		returned := append([]string{"v", "n", "key"}, strings.Split(results, ", ")[4:]...)
		for name, text := range map[string]string{
			"intact": twin.intact, "admits": twin.admits, "charge": twin.charge, "refuse": twin.refuse, "state": twin.state,
		} {
			if strings.Contains(withoutFunctions(text), "return") {
				t.Errorf("%v, rule 3: %s returns before its end", a, name)
			}
			for i, p := range parameters[name] {
				if p != "_" && p != returned[i] {
					t.Errorf("%v, rule 4: parameter %d of %s is %s, and %s in what admits returns", a, i+1, name, p, returned[i])
				}
			}
			for _, declared := range declares(text) {
				if name != "admits" && slices.Contains([]string{"value", "life", "state"}, declared) {
					t.Errorf("%v, rule 5: %s declares %s", a, name, declared)
				}
			}
		}

		for _, found := range luaHelper.FindAllStringSubmatch(twin.helpers, -1) {
			if other, ok := helpers[found[1]]; ok {
				t.Errorf("rule 6: %v and %v have a %s", a, other, found[1])
			}
			helpers[found[1]] = a
		}
	}
	for _, name := range []string{"push", "save", "given"} {
		if _, ok := helpers[name]; !ok {
			t.Errorf("no %s is found", name)
		}
	}
}

// A twin that breaks rule 1 or 3 is not made into a wrong script.
func TestTwinsWithoutMarkersPanic(t *testing.T) {
	for _, a := range scripted {
		source := a.Twin()
		for _, marker := range regexp.MustCompile(`--@\w+`).FindAllString(source, -1) {
			if marker == "--@helpers" {
				continue // not found missing here: the script would not run
			}
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%v is accepted without %s", a, marker)
					}
				}()
				parseTwin("twin", source[:strings.LastIndex(source, marker)]+source[strings.LastIndex(source, marker)+len(marker):])
			}()
		}
	}
}

// Numbers that Go and Lua share are the same in both.
func TestNumbersInLua(t *testing.T) {
	if want := "HEAD + 7 * " + strconv.Itoa(nearEntries); !strings.Contains(step.SlidingLog.Twin(), want) {
		t.Errorf("the sliding log's twin has no %q", want)
	}
	for name, want := range map[string]int{"PEEK, SETTLE, DENY": modePeek*100 + modeSettle*10 + modeDeny} {
		if declared := fmt.Sprintf("local %s = %d, %d, %d", name, want/100, want/10%10, want%10); !strings.Contains(mainPart, declared) {
			t.Errorf("main.lua has no %q", declared)
		}
	}
	words := regexp.MustCompile(`I(\d+)`).FindAllStringSubmatch(prelude+mainPart+save+flatLoop, -1)
	for _, word := range words {
		if word[1] != strconv.Itoa(step.WordBytes) {
			t.Errorf("a word of %s bytes", word[1])
		}
	}
}
