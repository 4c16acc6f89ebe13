package redisstore

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/old/core/step"
)

// Lua that can be read: no function is longer than 60 lines, and each that has a name says what it does or
// which function in Go it mirrors.
func TestLuaIsReadable(t *testing.T) {
	begins := regexp.MustCompile(`^( *)(?:local )?function ([\w.]+)\(`)
	for _, name := range scriptFiles {
		text, err := luaFiles.ReadFile("lua/" + name + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			found := begins.FindStringSubmatch(line)
			if found == nil {
				continue
			}
			last := i
			if !strings.HasSuffix(line, " end") {
				for lines[last] != found[1]+"end" {
					last++
				}
			}
			if last-i >= 60 {
				t.Errorf("%s.lua:%d: %s has %d lines", name, i+1, found[2], last-i+1)
			}
			said := i > 0 && strings.HasPrefix(strings.TrimSpace(lines[i-1]), "-- ")
			if last > i && !said && name != "arguments" {
				t.Errorf("%s.lua:%d: %s has no comment", name, i+1, found[2])
			}
		}
	}
}

// Numbers that Go and Lua share are the same in both.
func TestNumbersInLua(t *testing.T) {
	if [...]int{modeAllow, modePeek, modeRefuse, modeSettle, modeExtra} != [...]int{0, 1, 2, 3, 4} ||
		[...]form{formMore, formLast, formWhole, formInParts} != [...]form{0, 1, 2, 3} {
		t.Error("other modes or forms than in arguments.lua")
	}
	if step.Unlimited-1 != step.Algorithm(scripted) || scripted != 5 {
		t.Errorf("%d algorithms", scripted)
	}
	for _, want := range []string{
		fmt.Sprintf("string.byte(questions, 1, %d)", scripted+1),
		fmt.Sprintf("local question = %d ", scripted+2),
		fmt.Sprintf("local BEGINNING = %d ", step.WordBytes+36+step.WordBytes*nearEntries),
		fmt.Sprintf("redis.pcall('GETRANGE', key, 0, %d)", step.WordBytes+36+step.WordBytes*nearEntries-1),
		fmt.Sprintf("256 * high + low, pos + %d\n", cellBytes),
		fmt.Sprintf("if work > %d then", maxWords),
		fmt.Sprintf("local LENGTHS = %d ", 1<<lengthBits),
		fmt.Sprintf("local MAXLOG = %d ", maxLog),
	} {
		if !strings.Contains(scriptSource, want) {
			t.Errorf("the script has no %q", want)
		}
	}
	for _, word := range regexp.MustCompile(`>[I\d]*I(\d)`).FindAllStringSubmatch(scriptSource, -1) {
		if word[1] != fmt.Sprint(step.WordBytes) && word[1] != "2" {
			t.Errorf("a word of %s bytes", word[1])
		}
	}
}
