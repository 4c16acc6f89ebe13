package thirdparty

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"math/big"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/headgate/headgate/keyfuncs"
)

// A client may write the last character of a token in several ways, and turn a signature by
// ECDSA into another. Whatever of that a library verifies is charged under one key.
func TestSpellingsOfJWT(t *testing.T) {
	onCurve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	modulus, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method          jwt.SigningMethod
		private, public any
		verified        int
	}{
		{jwt.SigningMethodHS256, secret, secret, 4},
		{jwt.SigningMethodRS256, modulus, modulus.Public(), 16},
		{jwt.SigningMethodES256, onCurve, onCurve.Public(), 32},
	} {
		token, err := jwt.NewWithClaims(c.method, jwt.RegisteredClaims{Subject: "anna"}).SignedString(c.private)
		if err != nil {
			t.Fatal(err)
		}
		at := strings.LastIndexByte(token, '.') + 1
		signatures := []string{token[at:]}
		if c.method == jwt.SigningMethodES256 {
			b, err := base64.RawURLEncoding.DecodeString(token[at:])
			if err != nil {
				t.Fatal(err)
			}
			s := new(big.Int).SetBytes(b[32:])
			s.Sub(elliptic.P256().Params().N, s).FillBytes(b[32:])
			signatures = append(signatures, base64.RawURLEncoding.EncodeToString(b))
		}
		verified, keys := 0, make(map[string]bool)
		for _, signature := range signatures {
			for _, last := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
				text := token[:at] + signature[:len(signature)-1] + string(last)
				if _, err := jwt.Parse(text, func(*jwt.Token) (any, error) { return c.public, nil }); err != nil {
					continue
				}
				verified++
				r := httptest.NewRequest("GET", "/", nil)
				r.Header.Set("Authorization", "Bearer "+text)
				key, err := keyfuncs.Bearer()(r)
				if err != nil {
					t.Fatal(err)
				}
				keys[key] = true
			}
		}
		if verified != c.verified || len(keys) != 1 {
			t.Errorf("%s: %d spellings are verified, not %d, and have %d keys", c.method.Alg(), verified, c.verified, len(keys))
		}
	}
}
