; Reuse (Lemma 2). If nothing races, uses of the same bytes under different instances are in the order
; of the steps: the older instance is given back at step i, the newer one taken at step j > i.
; Used: section 9 (races are looked for within an instance only; its end is a use).

(push 1)
(declare-fun before (Int Int) Bool)
(declare-fun c (Int) Int)
(declare-const older Int) (declare-const newer Int) (declare-const i Int) (declare-const j Int)
(assert (! (forall ((o Int) (p Int) (q Int)) (=> (and (before o p) (before p q)) (before o q)))
           :named transitive))
(assert (! (forall ((m Int) (n Int)) (=> (< m n) (before (c m) (c n)))) :named stream))
(assert (! (or (= older (c i)) (before older (c i))) :named ends_after_its_uses))
(assert (! (or (= newer (c j)) (before (c j) newer)) :named taken_before_its_uses))
(assert (! (< i j) :named given_back_first))
(assert (not (before older newer)))
(check-sat)
(pop 1)
