package redisstore

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/core/step"
)

var update = flag.Bool("update", false, "write script.lua")

// twinFiles are the twins in core/step, in the order of the algorithms' numbers.
var twinFiles = []string{"tokenbucket", "fixedwindow", "slidingwindow", "slidinglog", "mininterval"}

// twins returns the parts of each, by name.
func twins(t *testing.T) (all []map[string]string) {
	t.Helper()
	if want := int(step.Unlimited) - 1; len(twinFiles) != want {
		t.Fatalf("%d twins for %d algorithms with a state", len(twinFiles), want)
	}
	for _, file := range twinFiles {
		source, err := os.ReadFile("../step/" + file + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		parts := make(map[string]string)
		name := "comment"
		for line := range strings.Lines(string(source)) {
			if next, ok := strings.CutPrefix(line, "--@"); ok {
				name = strings.TrimSpace(next)
			} else {
				parts[name] += line
			}
		}
		all = append(all, parts)
	}
	return all
}

var marker = regexp.MustCompile(`(?m)^( *)--@(\w+)\n`)

// assemble replaces the lines "--@name" in a text. NAME.lua in the folder lua is put in their
// place; or the parts of that name of all twins: helpers and rare one after the other, others
// as the branches of a statement that has the number of the algorithm.
func assemble(t *testing.T, text string, twins []map[string]string) string {
	t.Helper()
	return marker.ReplaceAllStringFunc(text, func(line string) string {
		found := marker.FindStringSubmatch(line)
		name := found[2]
		var b strings.Builder
		if whole, err := os.ReadFile("lua/" + name + ".lua"); err == nil {
			b.WriteString(assemble(t, string(whole), twins))
		}
		for i, parts := range twins {
			part, ok := parts[name]
			if part = strings.TrimSpace(part); !ok {
				continue
			}
			switch {
			case name == "helpers" || name == "rare":
				if b.Len() > 0 {
					b.WriteString("\n")
				}
				b.WriteString(part + "\n")
				continue
			case b.Len() == 0:
				b.WriteString("if")
			default:
				b.WriteString("elseif")
			}
			fmt.Fprintf(&b, " algorithm == %d then -- %v\n%s", i+1, step.Algorithm(i+1), indent(part+"\n", "  "))
		}
		if strings.HasPrefix(b.String(), "if algorithm") {
			b.WriteString("end\n")
		}
		if b.Len() == 0 {
			t.Errorf("nothing for %q", line)
		}
		return indent(b.String(), found[1])
	})
}

func indent(text, by string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line != "\n" {
			b.WriteString(by)
		}
		b.WriteString(line)
	}
	return b.String()
}

// What Redis runs is script.lua, which is put together from the folder lua and the twins in
// core/step. To renew it:
//
//	go test ./core/redisstore -run TestScriptIsAssembled -update
func TestScriptIsAssembled(t *testing.T) {
	const whole = "-- Put together by TestScriptIsAssembled from core/redisstore/lua and core/step: edit those.\n--\n--@prelude\n\n--@main\n"
	want := assemble(t, whole, twins(t))
	if *update {
		if err := os.WriteFile("script.lua", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if scriptSource != want {
		t.Error("script.lua is not current: run this test with -update")
	}
}

var (
	luaLocal    = regexp.MustCompile(`(?m)\blocal (?:function )?(\w+(?:, \w+)*)`)
	luaTopLevel = regexp.MustCompile(`(?m)^local (?:function )?(\w+(?:, \w+)*)`)
)

// declares returns the names that are declared in a text.
func declares(text string, by *regexp.Regexp) (names []string) {
	for _, found := range by.FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Split(found[1], ", ")...)
	}
	return names
}

// A twin has parts of known names, and what its helpers declare is not hidden by the names of
// another twin or of the loop into which the parts are put.
func TestPartsOfTwins(t *testing.T) {
	loop, err := os.ReadFile("lua/main.lua")
	if err != nil {
		t.Fatal(err)
	}
	taken := make(map[string]string)
	for _, name := range declares(string(loop), luaLocal) {
		taken[name] = "main.lua"
	}
	for i, parts := range twins(t) {
		var names []string
		for name := range parts {
			if !slices.Contains([]string{"helpers", "refuse", "grows"}, name) {
				names = append(names, name)
			}
		}
		if slices.Sort(names); fmt.Sprint(names) != "[admits charge comment rare state]" {
			t.Errorf("%s: beside the parts that not every twin has: %v", twinFiles[i], names)
		}
		for _, name := range declares(parts["helpers"], luaTopLevel) {
			if other, ok := taken[name]; ok {
				t.Errorf("%s and %s both declare %s", other, twinFiles[i], name)
			}
			taken[name] = twinFiles[i]
		}
	}
	if taken["push"] == "" || taken["place"] == "" || taken["bucketPlace"] == "" {
		t.Errorf("not all names are found: %v", taken)
	}
}

// Numbers that Go and Lua share are the same in both.
func TestNumbersInLua(t *testing.T) {
	for _, want := range []string{
		fmt.Sprintf("local used = sub(questions, 1, %d)\n", scripted),
		"local BEGINNING = " + strconv.Itoa(29+7*nearEntries) + " ",
		fmt.Sprintf("local PEEK, SETTLE, DENY, EXTRA = %d, %d, %d, %d\n", modePeek, modeSettle, modeRefuse, modeExtra),
		"if size > " + strconv.Itoa(partBytes) + " then n =",
		"local MAXWORDS = " + strconv.Itoa(maxWords) + " ",
		fmt.Sprintf("local LENGTHS = %d ", 1<<lengthBits),
		"local MAXLOG = " + strconv.Itoa(maxLog) + " ",
	} {
		if !strings.Contains(scriptSource, want) {
			t.Errorf("the script has no %q", want)
		}
	}
	for _, word := range regexp.MustCompile(`I(\d+)`).FindAllStringSubmatch(scriptSource, -1) {
		if word[1] != strconv.Itoa(step.WordBytes) && word[1] != "2" {
			t.Errorf("a word of %s bytes", word[1])
		}
	}
}
