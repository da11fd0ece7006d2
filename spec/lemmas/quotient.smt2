; Quotients. floordiv(x, n) is the one integer q with 0 <= x - n q < n, ceildiv(x, n) the one with
; 0 <= n q - x < n, and roundup(x, n) is not below x and less than n above it.
; Used: terms.Terms, which gives z3 the inequalities in place of `div`; direction.smt2.

(push 1) ; down
(declare-const x Int) (declare-const n Int) (declare-const q Int)
(assert (! (<= 0 (- x (* n q))) :named below))
(assert (! (< (- x (* n q)) n) :named close))
(assert (not (= q (floordiv x n))))
(check-sat)
(pop 1)

(push 1) ; up
(declare-const x Int) (declare-const n Int) (declare-const q Int)
(assert (! (<= 0 (- (- x) (* n (- q)))) :named above))
(assert (! (< (- (- x) (* n (- q))) n) :named close))
(assert (not (= q (ceildiv x n))))
(check-sat)
(pop 1)

(push 1) ; there is one
(declare-const x Int) (declare-const n Int)
(assert (! (< 0 n) :named positive))
(assert (not (and (<= 0 (- x (* n (floordiv x n))) (- n 1)) (<= 0 (- (roundup x n) x) (- n 1)))))
(check-sat)
(pop 1)
