package redisstore

import (
	"fmt"
	"io"
	"testing"
)

// What versions reply about the same, in scripts and outside.
func TestWhatRepliesSay(t *testing.T) {
	const old = "ERR Error running script (call to f_c00cc63bb85d8a9162bf449cd785855846172f77): @user_script:12: "
	for text, want := range map[string]string{
		"":                            "",
		"WRONGTYPE Operation":         "key",
		"ERR WRONGTYPE an odd server": "key",
		old + "WRONGTYPE Operation against a key":                                                              "key",
		"WRONGTYPE Operation script: c00c, on @user_script:1.":                                                 "key",
		"ERR user_script:34: attempt to perform arithmetic script: 0d64.":                                      "key",
		old + "user_script:34: attempt to perform arithmetic":                                                  "key",
		"NOSCRIPT No matching script. Please use EVAL.":                                                        "script",
		"MOVED 100 127.0.0.1:1":                                                                                "hash slot",
		"ASK 100 127.0.0.1:1":                                                                                  "hash slot",
		"TRYAGAIN Multiple keys request during rehashing of slot":                                              "hash slot",
		"CROSSSLOT Keys in request don't hash to the same slot":                                                "hash slot",
		"CLUSTERDOWN Hash slot not served":                                                                     "hash slot",
		"CLUSTERDOWN The cluster is down":                                                                      "",
		"NOPERM this user has no permissions to run the 'zadd' command":                                        "forbidden",
		"ERR unknown command 'INFO', with args beginning with: ":                                               "forbidden",
		"ERR unknown command `INFO`, with args beginning with: ":                                               "forbidden",
		old + "@user_script: 1: The user executing the script can't run this command or subcommand":            "forbidden",
		"ERR The user executing the script can't run this command or subcommand script: 1, on @user_script:1.": "forbidden",
		"ERR ACL failure in script: User u has no permissions to run the 'zadd' command":                       "forbidden",
		old + "@user_script: 1: Unknown Redis command called from Lua script":                                  "forbidden",
		"ERR Unknown Redis command called from script script: 0d64, on @user_script:1.":                        "forbidden",
		"ERR Unknown command called from script script: on @user_script:1.":                                    "forbidden",
		old + "@user_script: 1: -READONLY You can't write against a read only replica.":                        "",
		old + "@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.":                      "",
		"OOM a text with @user_script:1: WRONGTYPE in it":                                                      "",
	} {
		for _, err := range []error{replyError(text), fmt.Errorf("a call: %w", replyError(text))} {
			got := ""
			for name, is := range map[string]func(error) bool{"key": ofKey, "script": unknown, "hash slot": ofHashSlot, "forbidden": forbidden} {
				if is(err) {
					got += name
				}
			}
			if got != want {
				t.Errorf("%q is taken for %q, want %q", text, got, want)
			}
		}
	}
	for _, err := range []error{nil, io.EOF, fmt.Errorf("WRONGTYPE NOPERM")} {
		if ofKey(err) || unknown(err) || ofHashSlot(err) || forbidden(err) {
			t.Errorf("%v is taken for a reply", err)
		}
	}
}
